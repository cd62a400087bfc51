"""Faults in kernels whose scales are powers of two: codes as numbers, their places, and scales of D."""

from __future__ import annotations

from gluonsim import Kind
from mutants.committed import WRONG_NUMBERS
from mutants.mutant import of
from mutants.scales import BYTES, FENCE, LOAD

slabs, in_flight, parts, gated, quantized, short = (
    of("h100_e4m3_ue8m0"),
    of("h100_e4m3_ue8m0_overlapped"),
    of("h100_e4m3_ue8m0_split4"),
    of("h100_e4m3_ue8m0_gated"),
    of("h100_e4m3_ue8m0_quantized"),
    of("h100_e4m3_ue8m0_mx16"),
)
BITS = "codes.to(gl.int32) << 23"
ROWS = "scales.slice(0, CONSUMER_TILE_M, dim=1)"
PITCH = "gl.cdiv(args.k_steps, 16) * 16"
OF_PART = "gl.cdiv(blocks, 16) * 16"
HALVES = "powers_of_two(first), powers_of_two(second)"
OF_BLOCK = "b_scale_smem.index(ring.stage).slice(block, 1)"
PAIR = "(scales[block][0] * scales[block][1])"
PLACE = "[k // SCALE_K, tile.column]"
CARRY = "(largest.to(gl.int32, bitcast=True) + D_CARRY)"
INVERSE = "(254 - code) << 23"
STORED = "gl.store(scales, code.to(gl.uint8), mask=inside)"
MUTANTS = {
    "exponents_no_fence_before_the_loads": slabs(
        Kind.MISSING_FENCE, "a_scale_smem_0", LOAD, (FENCE, "            load_stage(")
    ),
    "exponents_bytes_not_expected": slabs(Kind.BYTE_COUNT, "load_ready", "mbarrier.expect(", (BYTES, ",")),
    "exponents_shifted_by_a_bit_less": slabs(WRONG_NUMBERS, "d_desc", "", (BITS, BITS.replace("23", "22"))),
    "exponents_taken_for_numbers": in_flight(
        WRONG_NUMBERS, "d_desc", "", (f"bits = gl.maximum({BITS}, 1 << 22)", "bits = codes.to(gl.int32)")
    ),
    "exponents_of_the_rows_beyond": in_flight(
        WRONG_NUMBERS, "d_desc", "", (ROWS, ROWS.replace("(0,", "(CONSUMER_TILE_M,"))
    ),
    "exponents_of_b_in_rows_of_fp32": slabs(WRONG_NUMBERS, "d_desc", "", (PITCH, PITCH.replace("16", "4"))),
    "exponents_of_b_in_rows_without_gaps": parts(WRONG_NUMBERS, "d_desc", "", (OF_PART, "blocks")),
    "exponents_of_the_other_block_of_columns": gated(
        WRONG_NUMBERS, "d_desc", "", (HALVES, "powers_of_two(second), powers_of_two(first)")
    ),
    "exponents_of_the_first_block_of_a_step": short(
        WRONG_NUMBERS, "d_desc", "", (OF_BLOCK, OF_BLOCK.replace("block,", "0,"))
    ),
    "exponents_of_blocks_of_128": short(
        WRONG_NUMBERS, "d_desc", "", (PLACE, PLACE.replace("SCALE", "PROGRAM_TILE"))
    ),
    "exponents_of_a_left_out": short(WRONG_NUMBERS, "d_desc", "", (PAIR, "scales[block][1]")),
    "exponents_of_d_rounded_down": quantized(
        WRONG_NUMBERS, "d_scale_ptr", "", (CARRY, CARRY.replace(" + D_CARRY", ""))
    ),
    "exponents_of_d_without_its_largest_number": quantized(
        WRONG_NUMBERS, "d_scale_ptr", "", (" - D_EXPONENT", "")
    ),
    "exponents_of_d_twice_the_inverse": quantized(
        WRONG_NUMBERS, "d_desc", "", (INVERSE, INVERSE.replace("254", "255"))
    ),
    "exponents_of_d_not_stored": quantized(WRONG_NUMBERS, "d_scale_ptr", "", (STORED, "")),
    "exponents_of_d_in_rows_of_fp32": quantized(
        WRONG_NUMBERS, "d_scale_ptr", "", ("gl.cdiv(args.m, 16) * 16", "gl.cdiv(args.m, 4) * 4")
    ),
}
"""Faults to plant in kernels, each with what the simulator must say of it."""
