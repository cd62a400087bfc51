"""Faults in a kernel whose programs divide the last wave by K steps.

In its launch there are eight tiles of 25 steps. Five programs have a whole one each; then three of them have
15 steps of one each, and two share what is behind these, so that the middle one has three pieces.
That `gl.barrier()` is missing before the counter is no fault: the compiler has all warps wait before a
release.
"""

from __future__ import annotations

from gluonsim import Kind
from mutants.counters import COUNTS, faults_of_counter
from mutants.kinds import WRONG_NUMBERS
from mutants.mutant import of

K = Kind

pieces = of("h100_fp16_stream_k")
COUNTER = "args.counters_ptr + divided * CONSUMERS + consumer"
COUNT = f'gl.atomic_add({COUNTER}, 1, sem="acq_rel", scope="gpu")'
ARRIVE = f"    arrived = {COUNT}\n"
LAST = "    return arrived == pieces - 1\n"
RESET = f"    gl.store({COUNTER}, 0)\n"
LEAVE = "    gl.store(sum_addresses(args, place * CONSUMERS + consumer, sums.type.layout), sums)\n"
OWN_PLACE = "    place = gl.program_id(0) + gl.where(division.has_chunk(), 0, divided)\n"
FIRST_SUMS = "    sums = gl.load(sum_addresses(args, divided * CONSUMERS + consumer, layout))\n"
NEXT_SUMS = "        sums += gl.load(sum_addresses(args, place * CONSUMERS + consumer, layout))\n"
OTHERS = "    for i in range(1, pieces):\n"
CHUNK_PLACE, PLACE_BEHIND = "i * division.tiles + divided", "after + i - division.chunks)"
PIECES = "gl.cdiv(begin + steps, division.share_steps) - owner\n"
SHARE = "gl.cdiv(divided * args.k_steps, programs)"
BEHIND = "return gl.maximum(self.args.k_steps - self.chunks * self.share_steps, 0)\n"
HAS_CHUNK = "return gl.program_id(0) < self.chunks * self.tiles\n"
CHUNK_BEGIN, CHUNK_END = "program // tiles * division.share_steps", "first + division.share_steps"
FIRST_STEP = "in_chunks + gl.maximum(rest_begin - rest_tile * steps, 0)"
END = "in_chunks + gl.minimum(rest_end - rest_tile * steps, steps)"
DIVIDED = "program % tiles, rest_tile)"
NUMBER = "gl.cdiv(end, steps) - begin // steps)\n"
WALK = """    for item in range(tiles.first(), tiles.end(), tiles.stride()):
        piece = tiles.piece(item)
"""
LOADED = "        tile, steps = tiles.at(piece), tiles.steps(piece)\n"
MULTIPLIED = "        tile = tiles.at(piece)\n"
STEPS = "        for k_step in range(steps.first, steps.end):\n"
MULTIPLY = "multiply(args, args.a_smem[consumer], k_steps, ring)"
IS_LAST = "            completes = is_last(args, tiles.division, divided, consumer, accumulator)\n"
IF_LAST = f"{IS_LAST}            if completes:\n"
SUM = "                accumulator = sum_of_pieces(args, tiles.division, divided, consumer)\n"
ROW = "tile.row + consumer * CONSUMER_TILE_M"
LOADS = f"""                load_vectors(args, args.buffers[consumer], {ROW})
                load_c(args, args.buffers[consumer], {ROW}, tile.column)
"""
STORE = "                phase,\n            )\n"
FLIP = "            phase ^= 1\n"

STORES_PIECE, LOADS_PIECES = "gl.store(sum_addresses(", "gl.load(sum_addresses("
EITHER_PIECE = f"{STORES_PIECE}|{LOADS_PIECES}"
EITHER_COUNTER = "gl.store(args.counters_ptr|gl.atomic_add(args.counters_ptr"
RING_WAIT = "mbarrier.wait(args."
LOAD = "tma.async_load("

MUTANTS = {
    # The counter: what it orders, for whom, and how it is left.
    **faults_of_counter("pieces_counter", pieces, COUNT, RESET, unordered="counters_ptr"),
    "pieces_counter_of_the_next_tile_reset": pieces(
        K.GLOBAL_RACE, "counters_ptr", EITHER_COUNTER, (RESET, RESET.replace("divided", "(divided + 1)"))
    ),
    "pieces_counter_reset_by_everyone": pieces(
        K.GLOBAL_RACE, "counters_ptr", EITHER_COUNTER, (RESET, ""), (ARRIVE, ARRIVE + RESET)
    ),
    "pieces_counter_of_both_consumers": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (COUNT, COUNT.replace(" + consumer", ""))
    ),
    "pieces_counter_of_the_first_tile": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (COUNT, COUNT.replace("divided", "(divided * 0)"))
    ),
    # Who adds up, and when.
    "pieces_nobody_is_last": pieces(
        K.WORKSPACE_NOT_RESTORED, "counters_ptr", COUNTS, (LAST, LAST.replace("pieces - 1", "pieces"))
    ),
    "pieces_first_adds_up": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (LAST, LAST.replace("pieces - 1", "0"))
    ),
    "pieces_everyone_adds_up": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (LAST, LAST.replace("arrived ==", "arrived <="))
    ),
    "pieces_whoever_is_behind_chunks_adds_up": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (LAST, "    return gl.program_id(0) >= division.tiles\n")
    ),
    "pieces_added_up_before_the_counter": pieces(
        K.GLOBAL_RACE,
        "counters_ptr",
        EITHER_COUNTER,
        (SUM, "                accumulator = total\n"),
        (IF_LAST, f"{SUM[4:].replace('accumulator', 'total')}{IF_LAST}"),
    ),
    "pieces_left_after_the_counter": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (LEAVE, ""), (ARRIVE, ARRIVE + LEAVE)
    ),
    # Where sums are left, and which are added up.
    "pieces_of_a_program_in_one_place": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (OWN_PLACE, OWN_PLACE.replace("0, divided", "0, 0"))
    ),
    "pieces_in_the_places_of_chunks": pieces(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PIECE,
        (OWN_PLACE, OWN_PLACE.replace("0, divided", "0, -division.tiles")),
    ),
    "pieces_of_a_tile_in_one_place": pieces(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PIECE,
        (OWN_PLACE, "    place = divided\n"),
    ),
    "pieces_of_consumers_in_one_place": pieces(
        K.GLOBAL_RACE, "partials_ptr", STORES_PIECE, (LEAVE, LEAVE.replace(" + consumer", ""))
    ),
    "pieces_of_the_other_consumer_added_up": pieces(
        K.GLOBAL_RACE,
        "partials_ptr",
        EITHER_PIECE,
        (FIRST_SUMS, FIRST_SUMS.replace("consumer,", "(1 - consumer),")),
    ),
    "pieces_chunk_left_out": pieces(WRONG_NUMBERS, "d_desc", "", (OTHERS, OTHERS.replace("1", "2"))),
    "pieces_last_left_out": pieces(
        WRONG_NUMBERS, "d_desc", "", (OTHERS, OTHERS.replace("pieces", "pieces - 1"))
    ),
    "pieces_of_the_next_tile_added_too": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (OTHERS, OTHERS.replace("pieces", "pieces + 1"))
    ),
    "pieces_chunks_of_the_next_tile_added": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (PLACE_BEHIND, PLACE_BEHIND.replace(" - ", " + "))
    ),
    "pieces_own_sums_added_too": pieces(
        WRONG_NUMBERS, "d_desc", "", (SUM, SUM.replace("accumulator =", "accumulator +="))
    ),
    "pieces_one_owner_too_many": pieces(
        K.WORKSPACE_NOT_RESTORED, "counters_ptr", COUNTS, (PIECES, PIECES.replace("owner", "owner + 1"))
    ),
    # Which steps are in a piece, for both roles.
    "pieces_begin_behind_the_chunks": pieces(WRONG_NUMBERS, "d_desc", "", (FIRST_STEP, "in_chunks")),
    "pieces_begin_with_their_tile": pieces(
        K.WORKSPACE_NOT_RESTORED,
        "counters_ptr",
        COUNTS,
        (FIRST_STEP, FIRST_STEP.replace("in_chunks + ", "")),
    ),
    "pieces_end_with_their_tile": pieces(WRONG_NUMBERS, "d_desc", "", (END, "division.args.k_steps")),
    "pieces_chunks_a_step_longer": pieces(WRONG_NUMBERS, "d_desc", "", (CHUNK_END, f"{CHUNK_END} + 1")),
    "pieces_chunks_a_step_late": pieces(WRONG_NUMBERS, "d_desc", "", (CHUNK_BEGIN, f"{CHUNK_BEGIN} + 1")),
    "pieces_chunks_of_the_next_tile": pieces(
        K.GLOBAL_RACE, "partials_ptr", EITHER_PIECE, (DIVIDED, DIVIDED.replace("program", "(program + 1)"))
    ),
    "pieces_one_too_few": pieces(
        K.WORKSPACE_NOT_RESTORED, "counters_ptr", COUNTS, (NUMBER, NUMBER.replace(")\n", " - 1)\n"))
    ),
    "pieces_nothing_behind_chunks": pieces(
        WRONG_NUMBERS, "d_desc", "", (BEHIND, "return self.args.k_steps * 0\n")
    ),
    "pieces_all_programs_have_chunks": pieces(
        K.WORKSPACE_NOT_RESTORED,
        "counters_ptr",
        COUNTS,
        (HAS_CHUNK, "return gl.program_id(0) >= 0\n"),
    ),
    # The same for one role alone.
    "pieces_producer_has_one_too_few": pieces(
        K.DEADLOCK,
        "load_ready",
        RING_WAIT,
        (WALK + LOADED, WALK.replace("end()", "end() - 1") + LOADED),
    ),
    "pieces_consumers_have_one_too_few": pieces(
        K.DEADLOCK,
        "load_empty",
        RING_WAIT,
        (WALK + MULTIPLIED, WALK.replace("end()", "end() - 1") + MULTIPLIED),
    ),
    "pieces_producer_begins_with_their_tile": pieces(
        WRONG_NUMBERS,
        "d_desc",
        "",
        (STEPS, STEPS.replace("steps.first, ", "").replace("end", "end - steps.first")),
    ),
    "pieces_producer_loads_whole_tiles": pieces(
        K.DEADLOCK,
        "load_empty",
        RING_WAIT,
        (STEPS, "        for k_step in range(args.k_steps):\n"),
    ),
    "pieces_consumers_multiply_whole_tiles": pieces(
        K.DEADLOCK, "load_ready", RING_WAIT, (MULTIPLY, MULTIPLY.replace(", k", ", args.k"))
    ),
    # What the epilogue of a tile that is completed reads, and when.
    "pieces_loads_of_everyone": pieces(
        K.WRITE_AFTER_WRITE,
        "row_scale_smem_0|row_scale_smem_1",
        LOAD,
        (IF_LAST + LOADS, LOADS.replace(" " * 16, " " * 12) + IF_LAST),
    ),
    "pieces_completed_without_loads": pieces(
        K.DEADLOCK, "vectors_ready", "mbarrier.wait(buffers.", (LOADS, "")
    ),
    "pieces_phase_not_flipped": pieces(
        K.READ_AFTER_WRITE, "c_smem_0|c_smem_1", "buffers.c_smem", (STORE + FLIP, STORE)
    ),
    "pieces_phase_of_whole_tiles": pieces(
        K.READ_AFTER_WRITE,
        "c_smem_0|c_smem_1",
        "buffers.c_smem",
        (STORE + FLIP, f"{STORE}            phase ^= (k_steps == args.k_steps).to(gl.int32)\n"),
    ),
}
