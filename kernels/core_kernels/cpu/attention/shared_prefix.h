// Finds sequences of a step that share a prefix of KV blocks; once per step, for all layers.
#pragma once

#include <cstdint>

// Sorts the sequences by their block tables, so that shared prefixes are adjacent.
//
// tables [sequences, stride], lengths [sequences]. Writes `order` [sequences], the sequence ids,
// and `shared` [sequences]: the number of positions in blocks shared with the next sequence in that
// order (0 for the last).
void find_shared(int64_t* order, int64_t* shared, const int32_t* tables, const int64_t* lengths,
                 int64_t sequences, int64_t stride, int64_t block_size);
