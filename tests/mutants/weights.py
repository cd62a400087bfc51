"""Faults of kernels that decode weights of four bits: of words, scales, and MMAs that read registers."""

from __future__ import annotations

from gluonsim import Kind
from mutants.committed import WRONG_NUMBERS
from mutants.mutant import of

K = Kind
int4, mxfp4, nvfp4 = of("h100_bf16_int4"), of("h100_bf16_mxfp4"), of("h100_bf16_nvfp4")
batched, experts = of("h100_bf16_mxfp4_batched"), of("h100_bf16_mxfp4_experts")
fp16, gate = of("h100_fp16_int4_zeros64"), of("h100_fp16_int4_gate")
e4m3_experts = of("h100_e4m3_mxfp4_experts")
int8, e4m3 = of("h100_bf16_int8_weights"), of("h100_bf16_e4m3_weights")
FENCE = "    fence_async_shared()\n    return accumulator\n"
MUTANTS = {
    "int4_nibbles_of_the_pair_before": int4(
        WRONG_NUMBERS, "d_desc", "", ("shr.u32 code, $4, 4;", "mov.b32 code, $4;")
    ),
    "int4_columns_exchanged": int4(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("[words, upper, lower, less_upper, less_lower]", "[words, lower, upper, less_lower, less_upper]"),
    ),
    "int4_zero_point_left_out": int4(
        WRONG_NUMBERS, "d_desc", "", ("mov.b32 zero, 0x80808080;", "mov.b32 zero, 0x00000000;")
    ),
    "int4_scales_of_the_first_part": int4(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("b_scales.slice(part * DECODED_K // SCALE_K, 1)", "b_scales.slice(0, 1)"),
    ),
    "int4_words_of_the_first_part": int4(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("b_words.slice(part * DECODED_K // 8, ", "b_words.slice(0 * DECODED_K // 8, "),
    ),
    "int4_stage_of_words_before": int4(
        K.READ_AFTER_WRITE,
        "b_smem",
        "words = b_smem.load(WORDS_LAYOUT)",
        ("args.b_smem.index(stage).reinterpret", "args.b_smem.index((stage + 1) % STAGES).reinterpret"),
    ),
    "int4_scale_bytes_not_expected": int4(
        K.BYTE_COUNT, "load_ready", "", (" + args.b_scale_desc.nbytes_per_cta", "")
    ),
    "mxfp4_sign_left_out": mxfp4(
        WRONG_NUMBERS, "d_desc", "", ("and.b32 code, code, 0x81808180;", "and.b32 code, code, 0x01800180;")
    ),
    "mxfp4_scale_of_the_block_before": mxfp4(
        WRONG_NUMBERS, "d_desc", "", ("0x0404 + (step // 2 * 0x1010)", "0x0404 + ((step // 2 & 2) * 0x1010)")
    ),
    "nvfp4_exponent_without_its_first_bits": nvfp4(
        WRONG_NUMBERS, "d_desc", "", ("shf.r.wrap.b32 $0, both, 7, 4;", "shf.r.wrap.b32 $0, both, 6, 4;")
    ),
    "batched_scales_of_the_first_batch": batched(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("[tile.group, k // SCALE_K, tile.column]", "[0, k // SCALE_K, tile.column]"),
    ),
    "experts_stage_released_without_a_fence": experts(
        K.MISSING_FENCE, "b_smem|b_scale_smem", "tma.async_load(", (FENCE, "    return accumulator\n")
    ),
    "int4_rows_of_the_part_ahead": int4(
        WRONG_NUMBERS, "d_desc", "", ("a_tile.slice(part * DECODED_K", "a_tile.slice((1 - part) * DECODED_K")
    ),
    "fp16_last_pair_shifted_as_for_bf16": fp16(
        WRONG_NUMBERS, "d_desc", "", ("shr.u32 code, $4, 5;", "shr.u32 code, $4, 8;")
    ),
    "int8_columns_exchanged": int8(
        WRONG_NUMBERS, "d_desc", "", ("[words, words_8, upper", "[words_8, words, upper")
    ),
    "int8_middle_left_out": int8(
        WRONG_NUMBERS, "d_desc", "", ("mov.b32 zero, 0x80808080;", "mov.b32 zero, 0x00000000;")
    ),
    "e4m3_sign_of_the_column_beside": e4m3(
        WRONG_NUMBERS, "d_desc", "", ("shl.b32 sign, $5, 8;", "shl.b32 sign, $4, 8;")
    ),
    "table_signs_of_the_elements_before": e4m3_experts(
        WRONG_NUMBERS, "d_desc", "", ("shl.b32 sign, $2, 4;", "mov.b32 sign, $2;")
    ),
    "table_of_the_other_instruction": e4m3_experts(
        WRONG_NUMBERS, "d_desc", "", ("scale >> (block * 8)", "scale >> ((block ^ 1) * 8)")
    ),
    "table_without_its_power": e4m3_experts(
        WRONG_NUMBERS, "d_desc", "", ("0x24201C18 + power * 0x08080808", "0x24201C18 + power * 0")
    ),
    "table_bytes_of_the_first_part": e4m3_experts(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("b_words.slice(part * DECODED_K // 2, ", "b_words.slice(0 * DECODED_K // 2, "),
    ),
    "gate_and_up_exchanged": gate(
        WRONG_NUMBERS,
        "d_desc",
        "",
        ("gate, up = eights_in_turn(accumulator)", "up, gate = eights_in_turn(accumulator)"),
    ),
    "gate_scales_of_the_columns_of_d": gate(
        WRONG_NUMBERS, "d_desc", "", ("[k // SCALE_K, 2 * tile.column]", "[k // SCALE_K, tile.column]")
    ),
}
