// One decode query per head over chosen slots, read where they lie: scores, softmax and sum of
// values in one pass over blocks of 1,024 slots (or a page that is larger), which are then joined by
// their log-sum-exp. Where blocks begin follows from slots alone, so that no result depends on how many
// rows or threads there are.
//
// Called through `attention.engines.cpp`, which checks what it passes. Compiled without -ffast-math:
// the loops that may add in any order say so.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

namespace {

struct BFloat16 {
  uint16_t bits;
};

inline float wide(float x) { return x; }
inline double wide(double x) { return x; }
inline float wide(BFloat16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void store(float x, float* out) { *out = x; }
inline void store(double x, double* out) { *out = x; }
inline void store(float x, BFloat16* out) {  // to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  out->bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// exp(x) for x <= 0 as 2^n times a polynomial (Cephes), which compilers put into vectors; within
// two units in the last place, and at least exp(-87).
inline float exponential(float x) {
  x = std::max(x, -87.0f);
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounded: 1.5 times 2^23
  const float rest = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * rest + 1.3981999507e-3f;
  p = p * rest + 8.3334519073e-3f;
  p = p * rest + 4.1665795894e-2f;
  p = p * rest + 1.6666665459e-1f;
  p = p * rest + 5.0000001201e-1f;
  p = p * rest * rest + rest + 1.0f;
  const uint32_t bits = (uint32_t(int32_t(n)) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}
inline double exponential(double x) { return std::exp(x); }

// What every call takes. Offsets and strides are in elements.
struct Shape {
  int64_t B, H, Hkv, M, D;       // rows, sets of slots, KV heads, queries a set, head size
  int64_t row, head;             // strides of keys and values
  int64_t U, page;               // pages of a set and slots of a page; U = 0: slots from 0 on
  int64_t most;                  // slots that probabilities are given of
  int64_t table_row, table_set;  // strides of the pages chosen and of the slots to read of each

  int64_t block() const { return std::max<int64_t>(1024, page); }
};

// As wide as the processor's own: what is wider goes through memory.
#if defined(__AVX512F__)
constexpr int64_t WIDTH = 64;
#elif defined(__AVX2__)
constexpr int64_t WIDTH = 32;
#else
constexpr int64_t WIDTH = 16;
#endif

template <class A, int64_t BYTES>
struct Bytes {
  typedef A Vector __attribute__((vector_size(BYTES)));
};

template <class A>
struct Lanes {
  static constexpr int64_t N = WIDTH / sizeof(A);
  typedef typename Bytes<A, WIDTH>::Vector Vector;
};

inline Lanes<float>::Vector load(const float* at) {
  Lanes<float>::Vector x;
  std::memcpy(&x, at, sizeof x);
  return x;
}
inline Lanes<double>::Vector load(const double* at) {
  Lanes<double>::Vector x;
  std::memcpy(&x, at, sizeof x);
  return x;
}
inline Lanes<float>::Vector load(const BFloat16* at) {
  Bytes<uint16_t, WIDTH / 2>::Vector half;
  std::memcpy(&half, at, sizeof half);
  typedef Bytes<uint32_t, WIDTH>::Vector Bits;
  const Bits bits = __builtin_convertvector(half, Bits) << 16;
  Lanes<float>::Vector x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

template <class A, int64_t BYTES>
inline A total(const typename Bytes<A, BYTES>::Vector& x) {
  if constexpr (BYTES > 16) {
    typename Bytes<A, BYTES / 2>::Vector half[2];
    std::memcpy(half, &x, sizeof x);
    return total<A, BYTES / 2>(half[0] + half[1]);
  } else if constexpr (sizeof(A) == 4) {
    return (x[0] + x[2]) + (x[1] + x[3]);
  } else {
    return x[0] + x[1];
  }
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define LIL_SHUFFLES
#endif
#endif

#ifdef LIL_SHUFFLES
// Two vectors of N / SIZE numbers each, a number being the sum of SIZE lanes, as one vector of twice
// as many numbers of half the lanes.
template <int SIZE, class V, size_t... I>
inline V halved(V x, V y, std::index_sequence<I...>) {
  constexpr int half = SIZE / 2;
  return __builtin_shufflevector(x, y, (int(I) / half * SIZE + int(I) % half)...) +
         __builtin_shufflevector(x, y, (int(I) / half * SIZE + int(I) % half + half)...);
}

// The sums of the lanes of N vectors, which `x` holds first; lanes are added in the order of `total`.
template <class A, int SIZE>
inline void totals(typename Lanes<A>::Vector* x) {
  if constexpr (SIZE > 1) {
    constexpr int left = SIZE / 2;  // vectors
    for (int i = 0; i < left; ++i)
      x[i] = halved<SIZE>(x[2 * i], x[2 * i + 1], std::make_index_sequence<Lanes<A>::N>());
    totals<A, left>(x);
  }
}
#endif

// Elements by which reading runs ahead; what is asked for need not exist.
constexpr int64_t AHEAD = 2048;

// The slots that are read one after the other: those that follow a first one, or those of a list, which
// is `ahead` longer than what is read.
struct InOrder {
  int64_t first, ahead;
  int64_t operator[](int64_t i) const { return first + i; }
  InOrder from(int64_t i) const { return {first + i, ahead}; }
};
struct Listed {
  const int64_t* slots;
  int64_t ahead;
  int64_t operator[](int64_t i) const { return slots[i]; }
  Listed from(int64_t i) const { return {slots + i, ahead}; }
};
inline int64_t ahead(int64_t D) { return std::max<int64_t>(1, AHEAD / D); }

template <class T>
inline void ask(const T* next, int64_t n) {
  for (int64_t i = 0; i < n; i += int64_t(64 / sizeof(T))) __builtin_prefetch(next + i, 0, 2);
}

// Q queries against K keys at once, so that what is loaded serves several products. However they are
// grouped, the products of one query and one key are added in the same order.
template <class T, class A, int Q, int K, class Slots>
inline void score_tile(const A* q, int64_t D, const T* k, const Slots& slots, A* p, int64_t stride) {
  typedef typename Lanes<A>::Vector Vector;
  constexpr int N = Lanes<A>::N;
  const T* at[K];
  for (int i = 0; i < K; ++i) at[i] = k + slots[i] * D;
  Vector sums[Q * K] = {};
  for (int64_t d = 0; d < D; d += N) {
    Vector keys[K];
    for (int i = 0; i < K; ++i) keys[i] = load(at[i] + d);
    for (int m = 0; m < Q; ++m) {
      const auto query = load(q + m * D + d);
      for (int i = 0; i < K; ++i) sums[m * K + i] += query * keys[i];
    }
  }
  A result[Q * K];
#ifdef LIL_SHUFFLES
  if constexpr (Q * K % N == 0) {
    for (int i = 0; i < Q * K; i += N) {
      totals<A, N>(sums + i);
      std::memcpy(result + i, sums + i, sizeof(Vector));
    }
  } else
#endif
    for (int i = 0; i < Q * K; ++i) result[i] = total<A, WIDTH>(sums[i]);
  for (int m = 0; m < Q; ++m) std::memcpy(p + m * stride, result + m * K, K * sizeof(A));
}

template <class T, class A, int Q, class Slots>
inline void score_rows(const A* q, int64_t D, const T* k, const Slots& slots, int64_t n, A* p,
                       int64_t stride) {
  constexpr int K = std::max<int>(2, Lanes<A>::N / Q);
  int64_t i = 0;
  for (; i + K <= n; i += K) {
    for (int j = 0; j < K; ++j) ask(k + slots[i + j + slots.ahead] * D, D);
    score_tile<T, A, Q, K>(q, D, k, slots.from(i), p + i, stride);
  }
  for (; i < n; ++i) score_tile<T, A, Q, 1>(q, D, k, slots.from(i), p + i, stride);
}

// M queries against the keys of n slots: p[m * stride + i].
template <class T, class A, class Slots>
inline void score(const A* q, int64_t M, int64_t D, const T* k, const Slots& slots, int64_t n, A* p,
                  int64_t stride) {
  if (D % Lanes<A>::N == 0) {
    int64_t m = 0;
    for (; m + 4 <= M; m += 4) score_rows<T, A, 4>(q + m * D, D, k, slots, n, p + m * stride, stride);
    for (; m + 2 <= M; m += 2) score_rows<T, A, 2>(q + m * D, D, k, slots, n, p + m * stride, stride);
    if (m < M) score_rows<T, A, 1>(q + m * D, D, k, slots, n, p + m * stride, stride);
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t m = 0; m < M; ++m) {
      const T* key = k + slots[i] * D;
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t d = 0; d < D; ++d) sum += q[m * D + d] * wide(key[d]);
      p[m * stride + i] = sum;
    }
}

// Add the values of n slots to C vectors of Q outputs, which stay in registers meanwhile.
template <class T, class A, int Q, int C, class Slots>
inline void mix_tile(const A* p, int64_t stride, int64_t D, const T* v, const Slots& slots, int64_t n,
                     A* out) {
  typedef typename Lanes<A>::Vector Vector;
  constexpr int64_t N = Lanes<A>::N;
  Vector sums[Q][C];
  for (int m = 0; m < Q; ++m)
    for (int c = 0; c < C; ++c) sums[m][c] = load(out + m * D + c * N);
  for (int64_t i = 0; i < n; ++i) {
    Vector values[C];
    ask(v + slots[i + slots.ahead] * D, C * N);
    for (int c = 0; c < C; ++c) values[c] = load(v + slots[i] * D + c * N);
    for (int m = 0; m < Q; ++m) {
      const A weight = p[m * stride + i];
      for (int c = 0; c < C; ++c) sums[m][c] += weight * values[c];
    }
  }
  for (int m = 0; m < Q; ++m)
    for (int c = 0; c < C; ++c) std::memcpy(out + m * D + c * N, &sums[m][c], sizeof(Vector));
}

template <class T, class A, int Q, class Slots>
inline void mix_rows(const A* p, int64_t stride, int64_t D, const T* v, const Slots& slots, int64_t n,
                     A* out) {
  constexpr int64_t N = Lanes<A>::N;
  int64_t d = 0;
  if (Q < 4)
    for (; d + 8 * N <= D; d += 8 * N) mix_tile<T, A, Q, 8>(p, stride, D, v + d, slots, n, out + d);
  for (; d + 4 * N <= D; d += 4 * N) mix_tile<T, A, Q, 4>(p, stride, D, v + d, slots, n, out + d);
  for (; d < D; d += N) mix_tile<T, A, Q, 1>(p, stride, D, v + d, slots, n, out + d);
}

// Add the values of n slots to M outputs, with weights p[m * stride + i].
template <class T, class A, class Slots>
inline void mix(const A* p, int64_t stride, int64_t M, int64_t D, const T* v, const Slots& slots,
                int64_t n, A* out) {
  if (D % Lanes<A>::N == 0) {
    int64_t m = 0;
    for (; m + 4 <= M; m += 4) mix_rows<T, A, 4>(p + m * stride, stride, D, v, slots, n, out + m * D);
    for (; m + 2 <= M; m += 2) mix_rows<T, A, 2>(p + m * stride, stride, D, v, slots, n, out + m * D);
    if (m < M) mix_rows<T, A, 1>(p + m * stride, stride, D, v, slots, n, out + m * D);
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t m = 0; m < M; ++m) {
      const T* value = v + slots[i] * D;
      const A weight = p[m * stride + i];
      A* sum = out + m * D;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) sum[d] += weight * wide(value[d]);
    }
}

// The slots to read in one block of a set's pages, with as many more as reading runs ahead; how many
// are to be read.
inline int64_t listed(const Shape& s, const int64_t* pages, const int64_t* counts, int64_t block,
                      int64_t* slots) {
  const int64_t each = s.block() / s.page;
  int64_t n = 0;
  for (int64_t u = block * each; u < std::min(s.U, (block + 1) * each); ++u)
    for (int64_t i = 0; i < counts[u]; ++i) slots[n++] = pages[u] * s.page + i;
  std::fill(slots + n, slots + n + ahead(s.D), n ? slots[n - 1] : 0);
  return n;
}

// What M scores of n slots each become: exp(score - top), in place; `tops` and `sums` are M numbers.
template <class A>
inline void exponentials(int64_t M, int64_t n, A* scores, int64_t stride, A* tops, A* sums) {
  for (int64_t m = 0; m < M; ++m) {
    A* p = scores + m * stride;
    A top = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; ++i) top = p[i] > top ? p[i] : top;
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) {
      p[i] = exponential(p[i] - top);
      sum += p[i];
    }
    tops[m] = top;
    sums[m] = sum;
  }
}

// One block of one set: n slots. `tops` and `sums` are M numbers each, `out` M * D; `work` has room for
// M * s.block() scores, which are left as exp(score - top).
template <class T, class A, class Slots>
void one_block(const Shape& s, const A* q, const T* k, const T* v, const Slots& slots, int64_t n,
               A* tops, A* sums, A* out, A* work) {
  score<T, A>(q, s.M, s.D, k, slots, n, work, s.block());
  exponentials<A>(s.M, n, work, s.block(), tops, sums);
  std::fill(out, out + s.M * s.D, A(0));
  mix<T, A>(work, s.block(), s.M, s.D, v, slots, n, out);
}

// Where the probability that a slot gets of all queries of a set is added, and its strides.
template <class A>
struct Mass {
  A* to;
  int64_t row, set;
};

template <class T, class A>
void attend(const Shape& s, const T* q, const T* k, const T* v, const int64_t* pages,
            const int64_t* counts, const int64_t* held, const A* sinks, T* out, A* lse, A* probs,
            const Mass<A>& mass, const T* other, const A* other_lse, int threads) {
  const int64_t sets = s.B * s.H, MD = s.M * s.D, group = s.H / s.Hkv;
  const int64_t each = s.U ? s.block() / s.page : s.block();
  int64_t longest = s.U;
  if (!s.U)
    for (int64_t b = 0; b < s.B; ++b) longest = std::max(longest, held[b]);
  const int64_t blocks = std::max<int64_t>(1, (longest + each - 1) / each);
  const int64_t part = MD + 2 * s.M;  // outputs, tops and sums of a block
  const std::unique_ptr<A[]> parts(new A[sets * blocks * part]);
  const std::unique_ptr<A[]> own(mass.to && !probs ? new A[sets * s.M * s.most] : nullptr);
  if (own) probs = own.get();
  const int64_t jobs = sets * blocks;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const std::unique_ptr<A[]> room(new A[MD + s.M * s.block()]);
    const std::unique_ptr<int64_t[]> list(s.U ? new int64_t[s.block() + ahead(s.D)] : nullptr);
    A *query = room.get(), *work = query + MD;
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < jobs; ++job) {
      const int64_t set = job / blocks, block = job % blocks, b = set / s.H, h = set % s.H;
      const int64_t base = b * s.row + h / group * s.head;
      for (int64_t i = 0; i < MD; ++i) query[i] = wide(q[set * MD + i]);
      A *mine = parts.get() + job * part, *tops = mine + MD, *sums = tops + s.M;
      int64_t n;
      if (s.U) {
        const int64_t table = b * s.table_row + h * s.table_set;
        n = listed(s, pages + table, counts + table, block, list.get());
        one_block<T, A>(s, query, k + base, v + base, Listed{list.get(), ahead(s.D)}, n, tops, sums,
                        mine, work);
      } else {
        const InOrder slots{block * s.block(), ahead(s.D)};
        n = std::max<int64_t>(0, std::min(s.block(), held[b] - slots.first));
        one_block<T, A>(s, query, k + base, v + base, slots, n, tops, sums, mine, work);
      }
      if (probs)
        for (int64_t m = 0; m < s.M; ++m) {
          A* to = probs + (set * s.M + m) * s.most + block * s.block();
          std::memcpy(to, work + m * s.block(), n * sizeof(A));
          std::fill(to + n, to + std::min(s.block(), s.most - block * s.block()), A(0));
        }
    }
    // Blocks joined.
#pragma omp for schedule(static)
    for (int64_t set = 0; set < sets; ++set) {
      for (int64_t m = 0; m < s.M; ++m) {
        A* first = parts.get() + set * blocks * part;
        const A other_top = other ? other_lse[set * s.M + m] : -std::numeric_limits<A>::infinity();
        A top = sinks ? sinks[set % s.H * s.M + m] : -std::numeric_limits<A>::infinity();
        for (int64_t i = 0; i < blocks; ++i) top = std::max(top, first[i * part + MD + m]);
        top = std::max(top, other_top);
        A total = sinks ? exponential(sinks[set % s.H * s.M + m] - top) : A(0);
        for (int64_t i = 0; i < blocks; ++i) {
          const A* one = first + i * part + MD;
          if (one[s.M + m] > 0) total += one[s.M + m] * exponential(one[m] - top);
        }
        const bool joined = other_top > -std::numeric_limits<A>::infinity();
        const A share = joined ? exponential(other_top - top) : A(0);
        total += share;
        if (lse) lse[set * s.M + m] = top + std::log(total);
        T* to = out + set * MD + m * s.D;
        A* sum = first + m * s.D;  // of the first block, which takes in the others
        for (int64_t i = 0; i < blocks; ++i) {
          const A* one = first + i * part;
          const A weight = one[MD + s.M + m] > 0 ? exponential(one[MD + m] - top) / total : A(0);
          for (int64_t d = 0; d < s.D; ++d)
            sum[d] = (i ? sum[d] : A(0)) + weight * one[m * s.D + d];
          if (probs) {
            A* p = probs + (set * s.M + m) * s.most + i * s.block();
            const int64_t n = std::min(s.block(), s.most - i * s.block());
            for (int64_t j = 0; j < n; ++j) p[j] *= weight;
          }
        }
        if (joined)
          for (int64_t d = 0; d < s.D; ++d) sum[d] += share / total * wide(other[set * MD + m * s.D + d]);
        for (int64_t d = 0; d < s.D; ++d) store(sum[d], to + d);
      }
      if (mass.to) {
        // Queries in their order, the same for every slot, so that equal slots stay equal.
        A *each = probs + set * s.M * s.most, *to = mass.to + set / s.H * mass.row + set % s.H * mass.set;
        const int64_t n = held[set / s.H];
        for (int64_t m = 1; m < s.M; ++m)
          for (int64_t j = 0; j < n; ++j) each[j] += each[m * s.most + j];
        for (int64_t j = 0; j < n; ++j) to[j] += each[j];
      }
    }
  }
}

// What is to be read: the chosen pages, then those that each row always reads.
struct Read {
  int64_t always, page, first;         // pages of a row; tokens of a page; number of the first one
  const int64_t *pages, *tokens;       // of those always read
  int64_t* counts;                     // tokens to read of each page; null where scores are wanted
};

// The k pages with the largest score of each set, best first, among equals the lower number; the score
// is the largest over M queries of the product with a page's summary of D numbers. Fewer pages may
// compete than are wanted: the next ones follow with a score of minus infinity. Where counts are asked
// for in the place of scores, the pages that are always read follow.
template <class T, class A>
void best(const Shape& s, int64_t k, bool narrow, const A* q, const T* summaries,
          const int64_t* competing, const Read& read, int64_t* pages, A* scores, int threads) {
  constexpr A never = -std::numeric_limits<A>::infinity();
  const int64_t sets = s.B * s.H, group = s.H / s.Hkv, most = *std::max_element(competing, competing + s.B);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const std::unique_ptr<A[]> room(new A[s.M * most]);
    const std::unique_ptr<int64_t[]> numbers(new int64_t[most]);
    A* worth = room.get();
    int64_t* order = numbers.get();
#pragma omp for schedule(static)
    for (int64_t set = 0; set < sets; ++set) {
      const int64_t b = set / s.H, h = set % s.H, n = competing[b], taken = std::min(n, k);
      score<T, A>(q + set * s.M * s.D, s.M, s.D, summaries + b * s.row + h / group * s.head,
                  InOrder{0, ahead(s.D)}, n, worth, most);
      for (int64_t m = 1; m < s.M; ++m)
        for (int64_t i = 0; i < n; ++i) {
          const A other = worth[m * most + i];
          worth[i] = other > worth[i] ? other : worth[i];
        }
      for (int64_t i = 0; i < n; ++i) {
        if (narrow) worth[i] = A(float(worth[i]));
        // A page that is no number is one to look at, as for torch; and an order needs numbers.
        if (worth[i] != worth[i]) worth[i] = std::numeric_limits<A>::infinity();
        order[i] = i;
      }
      const auto before = [worth](int64_t i, int64_t j) {
        return worth[i] > worth[j] || (worth[i] == worth[j] && i < j);
      };
      if (taken < n) std::nth_element(order, order + taken, order + n, before);
      std::sort(order, order + taken, before);
      if (read.counts) {
        const int64_t at = set * (read.always + k);
        for (int64_t i = 0; i < k; ++i) {
          pages[at + i] = read.first + (i < taken ? order[i] : i);
          read.counts[at + i] = i < taken && worth[order[i]] > never ? read.page : 0;
        }
        for (int64_t i = 0; i < read.always; ++i) {
          pages[at + k + i] = read.pages[b * read.always + i];
          read.counts[at + k + i] = read.tokens[b * read.always + i];
        }
        continue;
      }
      for (int64_t i = 0; i < k; ++i) {
        pages[set * k + i] = i < taken ? order[i] : i;
        scores[set * k + i] = i < taken ? worth[order[i]] : never;
      }
    }
  }
}

// The bits of numbers that are not negative are ordered as the numbers are.
template <class A>
using Bits = std::conditional_t<sizeof(A) == 4, int32_t, int64_t>;

// A number that `wanted` of n are not below, as bits, set bit by bit: each look at all of them is a
// few vectors. It is the least that is wanted, or one that parts those wanted from the others.
template <class I>
I limit(const I* bits, int64_t n, int64_t wanted) {
  I result = 0;
  for (int bit = 8 * int(sizeof(I)) - 2; bit >= 0; --bit) {
    const I next = result | I(1) << bit;
    I count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < n; ++i) count += bits[i] >= next;
    if (count >= wanted) result = next;
    if (count == wanted) break;
  }
  return result;
}

// The slots that get most probability of each set's queries, ascending: the last one held and k - 1
// others, among equals the first ones. What queries give is added, or the largest of it counts.
template <class T, class A>
void likeliest(const Shape& s, int64_t k, bool largest, const A* q, const T* keys,
               const int64_t* held, const A* sinks, int64_t* slots, int64_t* counts, int threads) {
  const int64_t sets = s.B * s.H, group = s.H / s.Hkv, most = *std::max_element(held, held + s.B);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const std::unique_ptr<A[]> room(new A[s.M * (most + 2)]);
    const std::unique_ptr<Bits<A>[]> numbers(new Bits<A>[most]);
    A *p = room.get(), *tops = p + s.M * most, *sums = tops + s.M;
    Bits<A>* bits = numbers.get();
#pragma omp for schedule(dynamic, 1)
    for (int64_t set = 0; set < sets; ++set) {
      const int64_t b = set / s.H, h = set % s.H, n = held[b], taken = std::min(n, k);
      score<T, A>(q + set * s.M * s.D, s.M, s.D, keys + b * s.row + h / group * s.head,
                  InOrder{0, ahead(s.D)}, n, p, most);
      exponentials<A>(s.M, n, p, most, tops, sums);
      for (int64_t m = 0; m < s.M; ++m) {
        if (sinks) {
          const A other_top = sinks[h * s.M + m], top = std::max(other_top, tops[m]);
          const A less = exponential(tops[m] - top);
          sums[m] = sums[m] * less + exponential(other_top - top);
          for (int64_t i = 0; i < n; ++i) p[m * most + i] *= less;
        }
        for (int64_t i = 0; i < n; ++i) {
          const A other = p[m * most + i] / sums[m];
          if (!m) p[i] = other;
          else if (largest) p[i] = other > p[i] ? other : p[i];
          else p[i] += other;
        }
      }
      for (int64_t i = 0; i < n; ++i)
        if (p[i] != p[i]) p[i] = std::numeric_limits<A>::infinity();  // as in `best`
      std::memcpy(bits, p, n * sizeof(A));
      bits[n - 1] = std::numeric_limits<Bits<A>>::max();
      const Bits<A> least = limit(bits, n, taken);
      int64_t equals = taken, at = set * k;
      for (int64_t i = 0; i < n; ++i) equals -= bits[i] > least;
      for (int64_t i = 0; i < n; ++i)
        if (bits[i] > least || (bits[i] == least && equals-- > 0)) {
          counts[at] = 1;
          slots[at++] = i;
        }
      for (int64_t i = taken; i < k; ++i) {
        counts[at] = 0;
        slots[at++] = i;
      }
    }
  }
}

// The slots worth most of each of N sets, among equals the first ones, in their order. NaN is worth
// most, as for torch.
template <class A>
void order(int64_t N, int64_t S, int64_t most, const A* worth, int64_t* index) {
  const std::unique_ptr<int64_t[]> room(new int64_t[S]);
  int64_t* all = room.get();
  for (int64_t set = 0; set < N; ++set) {
    const A* w = worth + set * S;
    for (int64_t i = 0; i < S; ++i) all[i] = i;
    const auto before = [w](int64_t i, int64_t j) {
      const bool nan_i = w[i] != w[i], nan_j = w[j] != w[j];
      if (nan_i != nan_j) return nan_i;
      return (!nan_i && w[i] > w[j]) || ((nan_i || w[i] == w[j]) && i < j);
    };
    if (most < S) std::nth_element(all, all + most, all + S, before);
    std::sort(all, all + most);
    std::memcpy(index + set * most, all, most * sizeof(int64_t));
  }
}

// Numbers of one slot of each of N sets become the larger of what they are and what is new, or the new
// ones where a slot is fresh.
template <class T>
void raise_to(int64_t N, int64_t D, const int64_t* slot, const uint8_t* fresh, const T* from, T* to) {
  for (int64_t i = 0; i < N; ++i) {
    T* mine = to + slot[i] * D;
    const T* other = from + i * D;
    if (fresh && fresh[i]) {
      std::memcpy(mine, other, D * sizeof(T));
      continue;
    }
    for (int64_t d = 0; d < D; ++d) {
      // What is no number stays to be seen.
      const bool larger = !(wide(other[d]) <= wide(mine[d])) && wide(mine[d]) == wide(mine[d]);
      mine[d] = larger ? other[d] : mine[d];
    }
  }
}

// A vector turned in its first n numbers, by cos and by sin, which is negative in the first half.
template <class T, class A>
inline void turn(int64_t D, int64_t n, const T* x, const A* cosine, const A* sine, T* out) {
  const int64_t half = n / 2;
  for (int64_t d = 0; d < half; ++d) {
    const A first = wide(x[d]), second = wide(x[d + half]);
    store(first * cosine[d] + second * sine[d], out + d);
    store(second * cosine[d + half] + first * sine[d + half], out + d + half);
  }
  std::memcpy(out + n, x + n, (D - n) * sizeof(T));
}

// Strides of vectors, or of what turns them, in elements.
struct Strides {
  int64_t row, head, slot;
};

// Vectors (B, H, N, D) turned.
template <class T, class A>
void rotate(int64_t B, int64_t H, int64_t N, int64_t D, int64_t n, const Strides& in,
            const Strides& angle, const Strides& to, const T* x, const A* cosine, const A* sine,
            T* out) {
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < N; ++i) {
        const int64_t by = b * angle.row + i * angle.slot;
        turn(D, n, x + b * in.row + h * in.head + i * in.slot, cosine + by, sine + by,
             out + b * to.row + h * to.head + i * to.slot);
      }
}

// What a page scores is the largest probability that one of its slots gets of a query, and of M queries
// the largest (0), the sum (1) or the mean (2). The better half of a set's pages, among equals the first,
// or all above alpha where that is not negative, are stamped with `now`, unless they have a later stamp.
template <class A>
void restamp(int64_t B, int64_t H, int64_t M, int64_t S, int64_t C, int64_t page, int how, double alpha,
             const A* probs, const int64_t* held, const int64_t* now, int32_t* stamps) {
  const int64_t pages = (S + page - 1) / page;
  const std::unique_ptr<A[]> room(new A[pages]);
  const std::unique_ptr<int64_t[]> numbers(new int64_t[pages]);
  A* scores = room.get();
  int64_t* order = numbers.get();
  for (int64_t set = 0; set < B * H; ++set) {
    const int64_t b = set / H, own = (held[b] + page - 1) / page;
    for (int64_t u = 0; u < own; ++u) {
      for (int64_t m = 0; m < M; ++m) {
        const A* p = probs + (set * M + m) * S;
        A top = 0;
        for (int64_t i = u * page; i < std::min(S, (u + 1) * page); ++i) top = std::max(top, p[i]);
        if (!m) scores[u] = top;
        else scores[u] = how ? scores[u] + top : std::max(scores[u], top);
      }
      if (how == 2) scores[u] /= A(M);
      order[u] = u;
    }
    int64_t best = std::max<int64_t>(own / 2, 1);
    if (alpha < 0) {
      if (best < own)
        std::nth_element(order, order + best, order + own, [scores](int64_t i, int64_t j) {
          return scores[i] > scores[j] || (scores[i] == scores[j] && i < j);
        });
    } else {
      best = std::remove_if(order, order + own, [=](int64_t u) { return !(scores[u] > A(alpha)); }) - order;
    }
    for (int64_t i = 0; i < best; ++i)
      for (int64_t j = order[i] * page; j < std::min(S, (order[i] + 1) * page); ++j)
        stamps[set * C + j] = std::max(stamps[set * C + j], int32_t(now[b]));
  }
}

// How much each of S keys repeats the others, of N sets, adding up to 1: the softmax of the mean of its
// cosines with all keys, of which each but leaves out itself and the newest one above the threshold.
template <class A>
void redundancy(int64_t N, int64_t S, int64_t D, double threshold, const A* keys, A* out) {
  constexpr int64_t AT_ONCE = 32;
  const std::unique_ptr<A[]> room(new A[S * D + AT_ONCE * S]);
  A *unit = room.get(), *cosine = unit + S * D;
  for (int64_t set = 0; set < N; ++set, keys += S * D, out += S) {
    for (int64_t i = 0; i < S; ++i) {
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t d = 0; d < D; ++d) sum += keys[i * D + d] * keys[i * D + d];
      const A norm = std::sqrt(sum) + A(1e-8);
      for (int64_t d = 0; d < D; ++d) unit[i * D + d] = keys[i * D + d] / norm;
    }
    std::fill(out, out + S, A(0));
    for (int64_t first = 0; first < S; first += AT_ONCE) {
      const int64_t n = std::min(AT_ONCE, S - first);
      score<A, A>(unit + first * D, n, D, unit, InOrder{0, 0}, S, cosine, S);
      for (int64_t i = 0; i < n; ++i) {
        A* row = cosine + i * S;
        row[first + i] = 0;
        int64_t newest = S - 1;
        while (newest >= 0 && !(row[newest] > A(threshold))) --newest;
        if (newest >= 0) row[newest] = 0;
        for (int64_t j = 0; j < S; ++j) out[j] += row[j];
      }
    }
    for (int64_t j = 0; j < S; ++j) out[j] /= A(S);
    A top, sum;
    exponentials<A>(1, S, out, S, &top, &sum);
    for (int64_t j = 0; j < S; ++j) out[j] /= sum;
  }
}

// The slot of each set that is worth least, among equals that of the newest token. Strides of rows and
// sets are given of both tensors.
template <class A>
void lowest(int64_t B, int64_t H, int64_t S, int64_t worth_row, int64_t worth_set,
            int64_t position_row, int64_t position_set, const A* worth, const int32_t* position,
            const int64_t* stays, int64_t* result) {
  constexpr A never = std::numeric_limits<A>::infinity();
  for (int64_t set = 0; set < B * H; ++set) {
    const int64_t b = set / H, h = set % H;
    const A* w = worth + b * worth_row + h * worth_set;
    const int32_t* p = position + b * position_row + h * position_set;
    const int64_t last = std::numeric_limits<int32_t>::max();
    const int32_t from = stays ? int32_t(std::min(stays[b], last)) : int32_t(last);
    A least = never;
#pragma omp simd reduction(min : least)
    for (int64_t i = 0; i < S; ++i) {
      const A x = p[i] >= from ? never : w[i];
      least = x < least ? x : least;
    }
    int32_t newest = -1;
#pragma omp simd reduction(max : newest)
    for (int64_t i = 0; i < S; ++i) {
      const int32_t at = (p[i] >= from ? never : w[i]) == least ? p[i] : -1;
      newest = at > newest ? at : newest;
    }
    int64_t slot = 0;
    while (slot + 1 < S && (p[slot] != newest || (p[slot] >= from ? never : w[slot]) != least)) ++slot;
    result[set] = slot;
  }
}

}  // namespace

// What is put into one slot of each set: bytes of a slot, the bytes from one set's to the next one's, 0
// where all get the same, and where it is and goes.
struct Put {
  int64_t bytes, stride;
  const char* from;
  char* to;
};

// One slot of each of N sets is overwritten, in several tensors alike; `slot` counts over all sets.
// Raised with every change of what is called, here and in `attention.engines.cpp`.
extern "C" int64_t lil_version() { return 1; }

extern "C" void lil_put(int64_t N, const int64_t* slot, int64_t tensors, const Put* puts) {
  for (const Put* one = puts; one < puts + tensors; ++one)
    for (int64_t i = 0; i < N; ++i)
      std::memcpy(one->to + slot[i] * one->bytes, one->from + i * one->stride, one->bytes);
}

// The slots of `index`, ascending, come to the front of each set; those behind them are emptied.
extern "C" void lil_move(int64_t R, int64_t H, int64_t C, int64_t S, int64_t most, int64_t bytes,
                         const int64_t* rows, const int64_t* index, const char* empty, char* data) {
  for (int64_t set = 0; set < R * H; ++set) {
    char* to = data + (rows[set / H] * H + set % H) * C * bytes;
    for (int64_t i = 0; i < most; ++i) {
      const int64_t from = index[set * most + i];
      if (from > i) std::memcpy(to + i * bytes, to + from * bytes, bytes);
    }
    for (int64_t i = most; i < S; ++i) std::memcpy(to + i * bytes, empty, bytes);
  }
}

#define LIL_ORDER(NAME, A)                                                                         \
  extern "C" void NAME(int64_t N, int64_t S, int64_t most, const void* worth, int64_t* index) {   \
    order<A>(N, S, most, static_cast<const A*>(worth), index);                                    \
  }

LIL_ORDER(lil_order_float32, float)
LIL_ORDER(lil_order_float64, double)
LIL_ORDER(lil_order_bfloat16, float)

#define LIL_RAISE(NAME, T)                                                                         \
  extern "C" void NAME(int64_t N, int64_t D, const int64_t* slot, const uint8_t* fresh,           \
                       const void* from, void* to) {                                              \
    raise_to(N, D, slot, fresh, static_cast<const T*>(from), static_cast<T*>(to));                \
  }

LIL_RAISE(lil_raise_to_float32, float)
LIL_RAISE(lil_raise_to_float64, double)
LIL_RAISE(lil_raise_to_bfloat16, BFloat16)

#define LIL_ROTATE(NAME, T, A)                                                                     \
  extern "C" void NAME(int64_t B, int64_t H, int64_t N, int64_t D, int64_t n, int64_t row,        \
                       int64_t head, int64_t slot, int64_t turn_row, int64_t turn_slot,           \
                       int64_t out_row, int64_t out_head, int64_t out_slot, const void* x,        \
                       const void* cosine, const void* sine, void* out) {                         \
    rotate<T, A>(B, H, N, D, n, Strides{row, head, slot}, Strides{turn_row, 0, turn_slot},        \
                 Strides{out_row, out_head, out_slot}, static_cast<const T*>(x),                  \
                 static_cast<const A*>(cosine), static_cast<const A*>(sine),                      \
                 static_cast<T*>(out));                                                           \
  }

LIL_ROTATE(lil_rotate_float32, float, float)
LIL_ROTATE(lil_rotate_float64, double, double)
LIL_ROTATE(lil_rotate_bfloat16, BFloat16, float)

#define LIL_RESTAMP(NAME, A)                                                                       \
  extern "C" void NAME(int64_t B, int64_t H, int64_t M, int64_t S, int64_t C, int64_t page,       \
                       int how, double alpha, const void* probs, const int64_t* held,             \
                       const int64_t* now, int32_t* stamps) {                                     \
    restamp<A>(B, H, M, S, C, page, how, alpha, static_cast<const A*>(probs), held, now, stamps); \
  }

LIL_RESTAMP(lil_restamp_float32, float)
LIL_RESTAMP(lil_restamp_float64, double)
LIL_RESTAMP(lil_restamp_bfloat16, float)

#define LIL_REDUNDANCY(NAME, A)                                                                    \
  extern "C" void NAME(int64_t N, int64_t S, int64_t D, double threshold, const void* keys,       \
                       void* out) {                                                               \
    redundancy<A>(N, S, D, threshold, static_cast<const A*>(keys), static_cast<A*>(out));         \
  }

LIL_REDUNDANCY(lil_redundancy_float32, float)
LIL_REDUNDANCY(lil_redundancy_float64, double)
LIL_REDUNDANCY(lil_redundancy_bfloat16, float)

#define LIL_LOWEST(NAME, A)                                                                        \
  extern "C" void NAME(int64_t B, int64_t H, int64_t S, int64_t worth_row, int64_t worth_set,     \
                       int64_t position_row, int64_t position_set, const void* worth,             \
                       const int32_t* position, const int64_t* stays, int64_t* result) {           \
    lowest<A>(B, H, S, worth_row, worth_set, position_row, position_set,                          \
              static_cast<const A*>(worth), position, stays, result);                              \
  }

LIL_LOWEST(lil_lowest_float32, float)
LIL_LOWEST(lil_lowest_float64, double)
LIL_LOWEST(lil_lowest_bfloat16, float)

#define LIL_BEST(NAME, T, A)                                                                      \
  extern "C" void NAME(int64_t B, int64_t H, int64_t Hkv, int64_t M, int64_t D, int64_t row,      \
                       int64_t head, int64_t k, int narrow, const void* q, const void* summaries, \
                       const int64_t* competing, int64_t always, int64_t page, int64_t first,     \
                       const int64_t* read, const int64_t* tokens, int64_t* counts,               \
                       int64_t* pages, void* scores, int threads) {                               \
    best<T, A>(Shape{B, H, Hkv, M, D, row, head, 0, 1, 0, 0, 0}, k, narrow, static_cast<const A*>(q),   \
               static_cast<const T*>(summaries), competing,                                       \
               Read{always, page, first, read, tokens, counts}, pages, static_cast<A*>(scores),   \
               threads);                                                                          \
  }

LIL_BEST(lil_best_float32, float, float)
LIL_BEST(lil_best_float64, double, double)
LIL_BEST(lil_best_bfloat16, BFloat16, float)

#define LIL_LIKELIEST(NAME, T, A)                                                                  \
  extern "C" void NAME(int64_t B, int64_t H, int64_t Hkv, int64_t M, int64_t D, int64_t row,      \
                       int64_t head, int64_t k, int largest, const void* q, const void* keys,     \
                       const int64_t* held, const void* sinks, int64_t* slots, int64_t* counts,   \
                       int threads) {                                                             \
    likeliest<T, A>(Shape{B, H, Hkv, M, D, row, head, 0, 1, 0, 0, 0}, k, largest,                 \
                    static_cast<const A*>(q), static_cast<const T*>(keys), held,                  \
                    static_cast<const A*>(sinks), slots, counts, threads);                        \
  }

LIL_LIKELIEST(lil_likeliest_float32, float, float)
LIL_LIKELIEST(lil_likeliest_float64, double, double)
LIL_LIKELIEST(lil_likeliest_bfloat16, BFloat16, float)

#define LIL_ATTEND(NAME, T, A)                                                                    \
  extern "C" void NAME(int64_t B, int64_t H, int64_t Hkv, int64_t M, int64_t D, int64_t row,      \
                       int64_t head, int64_t U, int64_t page, int64_t most, const void* q,        \
                       const void* k, const void* v, const int64_t* pages, const int64_t* counts, \
                       int64_t table_row, int64_t table_set, const int64_t* held,                 \
                       const void* sinks, void* out, void* lse, void* probs, void* mass,          \
                       int64_t mass_row, int64_t mass_set, const void* other,                     \
                       const void* other_lse, int threads) {                                      \
    attend<T, A>(Shape{B, H, Hkv, M, D, row, head, U, page, most, table_row, table_set},          \
                 static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v), pages, counts, held,         \
                 static_cast<const A*>(sinks), static_cast<T*>(out), static_cast<A*>(lse),        \
                 static_cast<A*>(probs), Mass<A>{static_cast<A*>(mass), mass_row, mass_set},      \
                 static_cast<const T*>(other), static_cast<const A*>(other_lse), threads);        \
  }

LIL_ATTEND(lil_attend_float32, float, float)
LIL_ATTEND(lil_attend_float64, double, double)
LIL_ATTEND(lil_attend_bfloat16, BFloat16, float)
