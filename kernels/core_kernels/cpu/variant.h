// Names of per-variant tables: TABLE(row_ops_) is row_ops_avx2 where VARIANT is avx2.
#pragma once

#define TABLE_JOINED(name, isa) name##isa
#define TABLE_NAMED(name, isa) TABLE_JOINED(name, isa)
#define TABLE(name) TABLE_NAMED(name, VARIANT)
