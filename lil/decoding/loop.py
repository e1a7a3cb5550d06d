"""The decode loop: `DecodeLoop._advance` is the order of one step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention import AttentionCache
from attention.core import devices
from attention.errors import InvalidValue
from attention.patching.captured import padded
from attention.patching.decode_step import DecodeStep, NotCompiled
from lil.decoding.batch import Batch, Flight, StepResult
from lil.decoding.choosing import BatchPenalties, Chooser, checked_tokens
from lil.decoding.compiling import step_of, warn_not_compiled
from lil.decoding.filling import check_prompts, longest_row, prompt_tokens, rows_together
from lil.decoding.lane import Lane, PendingAction, RunContext
from lil.decoding.options import Request
from lil.decoding.record import make_trace
from lil.decoding.sampling import NotFiniteError, Sampler
from lil.hidden_states import HiddenStates, margins, widened
from lil.rereading import left_padded
from lil.trace import Trace

#: Columns of a prompt that a CPU reads at once: whole prompts but for long ones, which would let
#: neither Ctrl-C nor anything else through for minutes. Parts cost up to half as much time again:
#: the fused kernel skips what a causal square hides and nothing else.
PROMPT_COLUMNS = 16384


class Callbacks(NamedTuple):
    """Callbacks of `lil.decoding.stream`."""

    token: Callable[[int, int, bytes], None] | None = None
    action: Callable[[int, Mapping[str, Any]], None] | None = None
    batch: Callable[[int], None] | None = None
    step: Callable[[int], None] | None = None


class DecodeLoop:
    """A batch of rows, each its own sequence; a finished row's place goes to the next request.

    Rows that go on under full attention move to a batch of their own and are stepped in turn.

    On an accelerator nothing waits for the newest decode step: the host looks at its tokens after
    it has launched the next one. A row that turns out to have ended was stepped once too often,
    which leaves nothing in its trace. The host looks at every token at once on a CPU, where a
    detector acts instead of stopping, and when a prompt was read.
    """

    def __init__(
        self, model: Any, requests: Sequence[Request], shared: RunContext, callbacks: Callbacks
    ) -> None:
        self.model, self.shared, self.callbacks = model, shared, callbacks
        options = shared.options
        self.backend, self.check_every = options.backend, options.check_every
        self.sampler = Sampler(options.temperature, options.top_k, options.top_p)
        watching = (*options.detectors, *options.probes)
        self.blocks = sorted({block for detector in watching for block in detector.blocks})
        self.reading = any(detector.signals for detector in watching)
        self.queue = deque(enumerate(requests))
        self.places = 0  # rows at a time, which the memory may decide
        self.sparse: Batch  # under the backend
        self.dense: Batch  # under full attention, after `densify`
        self.hidden: HiddenStates
        self.step: DecodeStep | None = None
        self.tokens_done = 0
        # Steps launched before the host looks at what an earlier one chose.
        self.acts = any(not detector.action.ends for detector in options.detectors)
        self.asks = any(detector.cues for detector in watching)
        self.lag = 0 if self.acts or self.asks or devices.is_synchronous(model.device) else 1
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._kv_heads: int = heads
        # Whether the choice of a token is captured where a step is one graph; it holds one
        # temperature, not one a row.
        self._in_graphs = Chooser.serves(options.penalties, model.device) and not options.reheats
        self._vocabulary = 0  # scores of a row, when a prompt has been read

    def run(self) -> Iterator[tuple[int, Trace]]:
        """Every request's index and trace, as they finish."""
        if not self.queue:
            return
        self.hidden = HiddenStates(self.model, self.blocks, self.shared.compared)
        with self.backend.on(self.model, self.shared.options.engine) as cache:
            self.sparse, self.dense = (
                Batch(cache, self.model.device, self.shared.options.penalties) for _ in range(2)
            )
            options, requests = self.shared.options, [request for _, request in self.queue]
            check_prompts(self.model, cache, [len(request.prompt_ids) for request in requests])
            self.places = rows_together(self.model, cache, options, requests)
            if self.callbacks.batch is not None:
                self.callbacks.batch(self.places)
            most = self.places if options.batch_size == "auto" else int(options.batch_size)
            if self.asks and cache.session.anatomy.switch is not None:
                allowed = "none that asks under this model, which reads longer texts anew"
                raise InvalidValue("detectors", self.model.config.model_type, allowed)
            # Before the model is hooked: a compiled step gives the states itself.
            states = self.hidden.modules
            self.step = step_of(self.model, cache, options, requests, most, states=states)
            cache.session.room = padded(self.places), longest_row(options, requests)
            yield from self._all()

    def _all(self) -> Iterator[tuple[int, Trace]]:
        with self.hidden:
            yield from self._admit([])
            while self.sparse.rows or self.dense.rows:
                if self.sparse.rows:
                    self._advance(self.sparse, self.sparse.rows)
                    free = yield from self._settle(self.sparse, self.sparse.rows)
                    yield from self._admit(free)
                if self.dense.rows:
                    self._advance(self.dense, self.dense.rows)
                    free = yield from self._settle(self.dense, self.dense.rows)
                    self._vacate(self.dense, free)
                    yield from self._admit([])

    @torch.inference_mode()
    def _advance(self, batch: Batch, rows: Sequence[Lane], newcomers: bool = False) -> None:
        """One token for each of `rows`: the whole batch, or newcomers whose prompts are read."""
        started = time.perf_counter()
        flight = self._launch(batch, rows, newcomers)
        if self.lag and not newcomers:
            flight, batch.flight = batch.flight, flight
        if flight is None or (flight.over and not newcomers):
            batch.unbilled += time.perf_counter() - started
            return
        result = flight.land()  # waits for the device: the clock below has seen the work
        landed_at = time.perf_counter()
        if newcomers:
            batch.bill_prompts(rows, landed_at - started)
        else:
            batch.bill(landed_at - started)
        self._take(batch, result, newcomers)
        batch.unbilled += time.perf_counter() - landed_at
        if self.asks:  # trials count their seconds themselves
            self._ask(batch.cache, result.rows)
        if self.callbacks.step is not None:
            self.callbacks.step(self.tokens_done)

    def _launch(self, batch: Batch, rows: Sequence[Lane], newcomers: bool) -> Flight | None:
        """Launch one step without waiting for the device; None where all rows are full."""
        if not newcomers and all(row.full for row in rows):
            return None
        greedy = self.sampler.greedy
        # A greedy row's stream is that of its reheated tokens alone, whatever the others do.
        uniforms = [row.draw() if not greedy or row.heat else 0.0 for row in rows]
        stats = None
        if newcomers:
            logits = self._prefill(batch, rows)
            self._vocabulary = logits.shape[1]
            tokens, checked = self._choose(batch, rows, logits, uniforms)
            batch.newest[[row.place for row in rows]] = tokens
        else:
            batch.newest, checked = self._step(batch, uniforms)
            stats = batch.cache.row_stats()
        for row in rows:
            row.unread += 1
        return Flight(rows, checked, stats, self.hidden)

    def _choose(
        self, batch: Batch, rows: Sequence[Lane], logits: Tensor, uniforms: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """The rows' next tokens and what the host gets of them, (B,) each."""
        penalties = batch.penalties
        if rows is not batch.rows:
            # Newcomers join the others' penalties with the next step.
            penalties = BatchPenalties(self.shared.options.penalties)
        scores = penalties(rows, batch.newest, logits)
        # Temperature, top-k, top-p, one uniform a token.
        heats = [row.heat for row in rows] if self.acts else []
        tokens, finite = self.sampler.reheated(scores, uniforms, heats)
        return tokens, checked_tokens(tokens, finite)

    def _take(self, batch: Batch, result: StepResult, newcomers: bool) -> None:
        """Append a step's tokens, show them to who watches, and note what they cost."""
        batch.charge(result)
        if self.reading:
            for place, row in enumerate(result.rows):
                if newcomers or row.finish is None:
                    row.see(result.states, place)  # of the token just read
        # A given prefix may have ended a newcomer already.
        busy = [row for row in result.rows if newcomers and row.finish is not None]
        eos = self.shared.eos
        for row, token in zip(result.rows, result.tokens, strict=True):
            row.unread -= 1
            if row.finish is not None:
                continue
            self.tokens_done += 1
            if row.calm and token not in eos:
                row.calm -= 1
                row.new_ids.append(token)
                taken = token
            else:
                busy.append(row)
                taken = row.take(token)
                if taken != token:  # a cue's token takes its place
                    batch.newest[row.place] = taken
            self._tell(row, taken)
        self._check(batch, [row for row in busy if row.check_due])
        if self.acts:
            self._remember(batch, result.rows)

    def _tell(self, row: Lane, token: int) -> None:
        """Show a token that a row took to the caller's callback, without the text of an `eos`."""
        if self.callbacks.token is not None:
            piece = b"" if row.finish == "eos" else self.shared.table[token]
            self.callbacks.token(row.index, token, piece)

    def _prefill(self, batch: Batch, rows: Sequence[Lane]) -> Tensor:
        """Read newcomers' prompts, padded on the left, into their places; logits (B, V)."""
        inputs = left_padded([row.prefix for row in rows], self.model.device)
        # A prefix may hold known output too, which is not prompt.
        cache = batch.cache.new(prompts=[len(row.prompt_ids) for row in rows])
        if not batch.rows:
            batch.cache = cache
        for begin, end in self._parts(inputs["input_ids"].shape[1], cache):
            part = {name: x[:, begin:end] for name, x in inputs.items()}
            part["attention_mask"] = inputs["attention_mask"][:, :end]
            logits = self._forward(cache, **part)
        batch.add_rows([row.place for row in rows], cache)
        return logits

    def _parts(self, width: int, cache: AttentionCache) -> list[tuple[int, int]]:
        """First and last column of each part of a prompt; none has one column alone."""
        whole = not cache.backend.keeps_all or not devices.is_synchronous(self.model.device)
        anatomy = cache.session.anatomy
        whole = whole or not anatomy.parts or anatomy.switch is not None
        step = width if whole else PROMPT_COLUMNS
        edges = [*range(0, width - 1, step)] or [0]
        return list(zip(edges, [*edges[1:], width], strict=True))

    def _step(self, batch: Batch, uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
        """As `_choose`, behind every row's newest token: in the step's graph where that can be."""
        for place in batch.cache.outgrown:
            self._read_again(batch, batch.rows[place], int(batch.cache.seen[place]), beyond=True)
        if self._in_graphs and self.step is not None and self.step.follows(batch.cache):
            if batch.chooser is None:
                batch.chooser = Chooser(
                    self.sampler, self.shared.options.penalties, self.hidden.compared.values(),
                    padded(self.places), self._vocabulary, batch.newest.device,
                )  # fmt: skip
            batch.chooser.prepare(batch.rows, uniforms)
            read = self._compiled(batch, batch.chooser)
            if read is not None:
                (tokens, checked, *compared), states = read
                self.hidden.take(states, compared)
                return tokens, checked
        return self._choose(batch, batch.rows, self._decode(batch), uniforms)

    def _decode(self, batch: Batch) -> Tensor:
        """Read every row's newest token; logits (B, V)."""
        read = self._compiled(batch)
        if read is None:
            positions = batch.cache.seen[:, None]
            return self._forward(
                batch.cache, input_ids=batch.newest[:, None], position_ids=positions
            )
        (scores,), states = read
        scores = widened(scores)
        self.hidden.take(states, margins(scores, self.hidden.compared.values()))
        return scores

    def _compiled(
        self, batch: Batch, then: Chooser | None = None
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]] | None:
        """`DecodeStep.followed` of every row's newest token; None where nothing is compiled."""
        if self.step is None:
            return None
        self.hidden.here_only()  # the model's hooks are for prompts then
        ids = batch.newest[:, None]
        # A graph has positions of its own; those of the host would have to be brought there.
        positions = ids if then or self.step.follows(batch.cache) else batch.cache.seen[:, None]
        try:
            return self.step.followed(batch.cache, ids, positions, then)
        except NotCompiled as error:  # not for so many rows, or not any more
            warn_not_compiled(str(error))
            self.step = None
            return None

    def _read_again(self, batch: Batch, row: Lane, tokens: int, beyond: bool) -> None:
        """Read a row's first tokens anew, as a text on one side of the model's switch."""
        ids = torch.tensor([[*row.prompt_ids, *row.new_ids][:tokens]], device=self.model.device)
        cache = batch.cache.new(prompts=[len(row.prompt_ids)], beyond=beyond)
        self._forward(
            cache, input_ids=ids, position_ids=torch.arange(tokens, device=ids.device)[None]
        )
        batch.cache.replace_rows([row.place], cache)

    def _forward(self, cache: AttentionCache, **inputs: Tensor) -> Tensor:
        self.hidden.here_only()  # a stream may be drawn from one thread and then from another
        output = self.model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return widened(output.logits[:, -1])

    def _check(self, batch: Batch, rows: Sequence[Lane]) -> None:
        for row, totals in zip(rows, batch.ledger.read([row.place for row in rows]), strict=True):
            row.check(totals, batch.seconds - row.started_at)

    @torch.inference_mode()
    def _ask(self, cache: AttentionCache, rows: Sequence[Lane]) -> None:
        """Answer trials on copies of their rows; cues are read a token a step, as are actions'."""
        asked = [(row, *asking) for row in rows for asking in row.trials()]
        started, going = time.perf_counter(), [trial for *_, trial in asked]
        cache = cache.clone([row.place for row, *_ in asked]) if asked else cache
        while going:
            ids = devices.put([x.ids[x.tokens] for x in going], self.model.device, torch.int64)
            inputs = {"input_ids": ids[:, None], "position_ids": cache.seen[:, None]}
            likely = self._forward(cache, **inputs).double().log_softmax(-1)
            best, tokens = likely.max(-1)
            if not best.isfinite().all():
                raise NotFiniteError
            entropies = torch.special.entr(likely.exp()).sum(-1)
            columns = (cache.row_stats().keys_read, tokens, best, entropies)
            for trial, keys, token, *numbers in zip(
                going, *(x.tolist() for x in columns), strict=True
            ):
                piece = None if token in self.shared.eos else self.shared.table[token]
                trial.read(keys, token, piece, *numbers)
            left = [at for at, trial in enumerate(going) if not trial.ended]
            if 0 < len(left) < len(going):
                cache.select_rows(left)
            going = [going[at] for at in left]
        each = (time.perf_counter() - started) / max(1, sum(trial.tokens for *_, trial in asked))
        for _, watcher, trial in asked:
            trial.seconds = each * trial.tokens
            watcher.hear(trial)

    # What follows a verdict

    def _remember(self, batch: Batch, rows: Sequence[Lane]) -> None:
        """Keep the states that a coming verdict may go back to, where a cache cannot rewind.

        The state of n tokens is that before the n-th was read; of none it is that of one.
        """
        for row in rows:
            if row.due is not None:
                continue  # it goes back now
            wanted = {max(n, 1) for n in row.returns()} if row.finish is None else set()
            for tokens in row.snapshots.keys() - wanted:
                del row.snapshots[tokens]
            present = len(row.new_ids)
            if present in wanted - row.snapshots.keys() and not batch.cache.rewindable:
                row.snapshots[present] = batch.cache.clone([row.place])

    @torch.inference_mode()
    def _act(self, batch: Batch, row: Lane, due: PendingAction) -> bool:
        """Bring the model's state to where the output is cut, and let the row go on from there."""
        started = time.perf_counter()
        state = max(due.cut, 1)
        if state < len(row.new_ids):
            tokens, switch = len(row.prompt_ids) + state - 1, batch.cache.session.anatomy.switch
            if batch.cache.rewindable and switch is not None and tokens <= switch:
                self._read_again(batch, row, tokens, beyond=False)
            elif batch.cache.rewindable:
                batch.cache.rewind(row.place, tokens)
            else:
                batch.cache.replace_rows([row.place], row.snapshot(due, state))
        row.act(due)
        if self.callbacks.action is not None and row.acted is not None:
            self.callbacks.action(row.index, row.acted)
        if not due.cut:  # the prompt has been read, and the cue's first token comes next
            self._tell(row, row.take(0))
        if row.finish is None:
            batch.newest[row.place] = row.new_ids[-1]
        leaves = due.action.dense and row.finish is None
        if leaves:
            self.dense.take_over(row, batch, batch.cache.go_dense([row.place]))
        elif row.finish is not None:
            self._check(batch, [row])
        self._remember(self.dense if leaves else batch, [row])
        batch.unbilled += time.perf_counter() - started
        return leaves

    def _settle(
        self, batch: Batch, rows: Sequence[Lane]
    ) -> Generator[tuple[int, Trace], None, list[int]]:
        """Act where a detector fired; the traces of rows that ended, then the free places."""
        free, ended = [], []
        for row in [row for row in rows if row.due is not None or row.finish is not None]:
            place = row.place
            left = row.due is not None and self._act(batch, row, row.due)
            if row.finish is not None:
                ended.append(row)
            if left or row.finish is not None:
                free.append(place)
        for row in ended:
            windows = batch.cache.session.windows
            yield row.index, make_trace(row, self._kv_heads, windows, self.check_every)
        return free

    def _admit(self, free: list[int]) -> Iterator[tuple[int, Trace]]:
        """Let the next requests in while there is room, and drop places that nobody needs."""
        batch = self.sparse
        while self.queue:
            occupied = len(batch.rows) - len(free) + len(self.dense.rows)
            count = self._together(self.places - occupied)
            if not count:
                break
            places = [*free, *range(len(batch.rows), len(batch.rows) + count)][:count]
            newcomers = [Lane(*self.queue.popleft(), place, self.shared) for place in places]
            self._advance(batch, newcomers, newcomers=True)
            for row in newcomers:
                batch.rows[row.place : row.place + 1] = [row]
            left = yield from self._settle(batch, newcomers)
            free = left + free[count:]
        self._vacate(batch, free)

    def _together(self, most: int) -> int:
        """How many of the next requests to read in one forward."""
        most, width = min(most, len(self.queue)), 0
        bound = prompt_tokens(self.model.device)
        for count, (_, request) in enumerate(islice(self.queue, most)):
            width = max(width, len(request.prompt_ids) + len(request.forced))
            if count and (count + 1) * width > bound:
                return count
        return most

    def _vacate(self, batch: Batch, free: Sequence[int]) -> None:
        """Drop rows whose places are free."""
        if free:
            batch.keep([place for place in range(len(batch.rows)) if place not in free])
