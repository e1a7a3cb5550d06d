// The LZ penalty of one step for all rows of a batch: each row's newest token is matched against its
// own past, and the scores of the tokens in its window are lowered.
//
// Called through `lil.penalties._lz_cpp`, which checks what it passes. Every number is computed as
// `lil.penalties.lz` computes it, in the same order and with the same roundings: logarithms come from
// tables that torch made, and the compiler may not fuse a multiplication with an addition
// (-ffp-contract=off).

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

enum Formula { DERIVED, PRINTED, RATE };

constexpr int32_t EMPTY = -1;

}  // namespace

// What is remembered of B rows; see `LZState`. A row uses the first `size` of its C places.
struct LilLzRows {
  int64_t B, C, E;
  int32_t* tokens;         // (B, C), a ring
  int32_t* lengths;        // (B, C), of the match that ends at each place, the newest token's last
  int32_t* marks;          // (B, 2): the newest token's place in the ring, tokens in the ring
  const int32_t* shapes;   // (B, 3): size, buffer, formula
  const double* alphas;    // (B,)
  const int32_t* exempt;   // (B, E), EMPTY where there is none
};

// Logarithms and extension values, (lengths, D) from length 0 and distance 0 on.
struct LilLzTables {
  const void* logarithms;
  const void* derived;
  const void* printed;
  int64_t D;
};

namespace {

struct Row {
  int32_t* tokens;
  int32_t* lengths;
  int32_t* marks;
  int32_t size, buffer, formula;
  double alpha;
  const int32_t* exempt;

  Row(const LilLzRows& rows, int64_t b)
      : tokens(rows.tokens + b * rows.C),
        lengths(rows.lengths + b * rows.C),
        marks(rows.marks + b * 2),
        size(rows.shapes[b * 3]),
        buffer(rows.shapes[b * 3 + 1]),
        formula(rows.shapes[b * 3 + 2]),
        alpha(rows.alphas[b]),
        exempt(rows.exempt + b * rows.E) {}

  int32_t first() const { return size - marks[1]; }  // index of the oldest token

  // The ring from its oldest place on.
  void unroll(int32_t* line) const {
    const int32_t start = marks[0] + 1;
    std::copy(tokens + start, tokens + size, line);
    std::copy(tokens, tokens + start, line + (size - start));
  }
};

// Matches belong to distances: each grows by one where its token is the newest, or ends.
void push(const Row& row, int64_t newest, int32_t* line) {
  const int32_t token = int32_t(newest), most = row.buffer;
  row.marks[0] = row.marks[0] + 1 == row.size ? 0 : row.marks[0] + 1;
  row.marks[1] = std::min(row.marks[1] + 1, row.size);
  row.tokens[row.marks[0]] = token;
  row.unroll(line);
  int32_t* lengths = row.lengths;
  for (int32_t i = row.first(); i < row.size; ++i) {
    const int32_t more = std::min(lengths[i] + 1, most);
    lengths[i] = line[i] == token ? more : 0;
  }
}

// `scores` of the places from `from` to `to`, before anything is written.
template <class T>
void gather(const int32_t* line, int32_t from, int32_t to, uint32_t V, const T* scores, T* old) {
  for (int32_t i = from; i < to; ++i) {
    if (uint32_t(line[i]) < V) old[i] = scores[line[i]];
  }
}

template <class T>
void codes(const Row& row, const int32_t* line, const LilLzTables& tables, T full, uint32_t V,
           T* scores, T* old, T* amounts) {
  const T* logarithms = static_cast<const T*>(tables.logarithms);
  const T alpha = T(row.alpha);
  const int32_t W = row.size - row.buffer, first = row.first();
  int32_t longest = 0;
  // Matches lie in the window: one that ends at index i has at most i + 1 tokens.
  for (int32_t i = first; i < W; ++i) longest = std::max(longest, std::min(row.lengths[i], i + 1));
  for (int32_t i = first; i < W; ++i) amounts[i] = alpha * (logarithms[W - i] - full);
  gather(line, first, W, V, scores, old);
  for (int32_t i = first; i < W; ++i) {  // the nearest is written last
    if (uint32_t(line[i]) < V) scores[line[i]] = old[i] + amounts[i];
  }
  if (longest == 0) return;
  const T* bits = static_cast<const T*>(row.formula == PRINTED ? tables.printed : tables.derived);
  bits += longest * tables.D;
  for (int32_t i = first; i + 1 < W; ++i) {
    if (std::min(row.lengths[i], i + 1) != longest) continue;
    const int32_t token = line[i + 1];
    if (uint32_t(token) >= V) continue;
    const T value = old[i + 1] + alpha * (bits[W - i] - full);
    // The nearest counts. `derived` grows with the distance but for its rounding.
    if (row.formula == PRINTED || value < scores[token]) scores[token] = value;
  }
}

template <class T>
void rates(const Row& row, const int32_t* line, const LilLzTables& tables, T full, uint32_t V,
           T* scores, T* old) {
  const T* logarithms = static_cast<const T*>(tables.logarithms);
  const T alpha = T(row.alpha);
  // At least `buffer` tokens stand before a candidate.
  const int32_t from = row.first() + row.buffer;
  gather(line, from, row.size, V, scores, old);
  for (int32_t i = from; i < row.size; ++i) {
    const int32_t token = line[i], length = row.lengths[i - 1] + 1;
    if (uint32_t(token) >= V) continue;
    const T bits = (logarithms[row.size - i + 1] + logarithms[length]) / T(length);
    const T value = old[i] + alpha * (std::min(bits, full) - full);
    if (value < scores[token]) scores[token] = value;
  }
}

template <class T>
void step(const LilLzRows& rows, const int64_t* newest, const uint8_t* live,
          const LilLzTables* tables, double full, int64_t V, int64_t stride, const int64_t* places,
          T* scores) {
  std::vector<int32_t> line(rows.C);
  std::vector<T> old(scores == nullptr ? 0 : 2 * rows.C), kept(rows.E);
  for (int64_t b = 0; b < rows.B; ++b) {
    const Row row(rows, b);
    if (newest != nullptr && (live == nullptr || live[b])) push(row, newest[b], line.data());
    else if (scores != nullptr) row.unroll(line.data());
    if (scores == nullptr) continue;
    T* own = scores + (places == nullptr ? b : places[b]) * stride;
    for (int64_t e = 0; e < rows.E; ++e) {
      if (uint64_t(row.exempt[e]) < uint64_t(V)) kept[e] = own[row.exempt[e]];
    }
    if (row.formula == RATE) {
      rates<T>(row, line.data(), *tables, T(full), uint32_t(V), own, old.data());
    } else {
      codes<T>(row, line.data(), *tables, T(full), uint32_t(V), own, old.data(),
               old.data() + rows.C);
    }
    for (int64_t e = 0; e < rows.E; ++e) {
      if (uint64_t(row.exempt[e]) < uint64_t(V)) own[row.exempt[e]] = kept[e];
    }
  }
}

}  // namespace

// Start anew from `history` (B, n), right-aligned with EMPTY before short rows.
extern "C" void lil_lz_load(const LilLzRows* rows, int64_t n, const int64_t* history) {
  for (int64_t b = 0; b < rows->B; ++b) {
    const Row row(*rows, b);
    const int64_t* end = history + (b + 1) * n;
    const int32_t size = row.size;
    int32_t held = 0;
    while (held < size && held < n && end[-1 - held] != EMPTY) ++held;
    std::fill(row.tokens, row.tokens + rows->C, EMPTY);
    std::fill(row.lengths, row.lengths + rows->C, 0);
    for (int32_t i = 0; i < held; ++i) row.tokens[size - 1 - i] = int32_t(end[-1 - i]);
    row.marks[0] = size - 1;
    row.marks[1] = held;
    const int32_t first = size - held;
    for (int32_t i = first; i + 1 < size; ++i) {
      int32_t k = 0;
      while (k < row.buffer && i - k >= first && row.tokens[i - k] == row.tokens[size - 1 - k]) ++k;
      row.lengths[i] = k;
    }
  }
}

// Append `newest` (B,) to the rows that are `live`, and lower the scores of row `places[b]` of
// (.., V) with what is then remembered of row b. Either may be left out by a null pointer; without
// `live` all rows are, without `places` each row has its own place.
#define LIL_LZ_STEP(NAME, T)                                                                       \
  extern "C" void NAME(const LilLzRows* rows, const int64_t* newest, const uint8_t* live,          \
                       const LilLzTables* tables, double full, int64_t V, int64_t stride,          \
                       const int64_t* places, void* scores) {                                      \
    step<T>(*rows, newest, live, tables, full, V, stride, places, static_cast<T*>(scores));        \
  }

LIL_LZ_STEP(lil_lz_step_float32, float)
LIL_LZ_STEP(lil_lz_step_float64, double)
