// Names of per-variant tables: TABLE(row_ops_) is row_ops_avx2 where VARIANT is avx2.
#pragma once

#define TABLE_JOINED(name, isa) name##isa
#define TABLE_NAMED(name, isa) TABLE_JOINED(name, isa)
#define TABLE(name) TABLE_NAMED(name, VARIANT)

// Declares the tables of all variants. A library has those of the variants that it was built with
// (build.py defines BUILT_<variant>); a variant without an own table uses that of another one
// (dispatch.cpp).
#define VARIANT_TABLES(Ops, name)                                                \
    extern const Ops name##generic, name##avx2, name##avx2_vnni, name##avx512,   \
        name##avx512_vnni, name##avx512_bf16, name##amx, name##amx_emulated,     \
        name##neon_dotprod, name##neon_i8mm, name##neon_bf16
