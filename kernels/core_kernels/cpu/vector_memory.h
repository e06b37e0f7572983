// Loads and stores of whole vectors, each half of a pair by itself: GCC copies a larger structure
// through the stack.
#pragma once

#include <cstring>

#include "cpu/vector_pair.h"

namespace {

template <typename Vector>
struct VectorMemory {
    static Vector load(const char* from) {
        Vector vector;
        std::memcpy(&vector, from, sizeof vector);
        return vector;
    }
    static void store(char* to, Vector vector) { std::memcpy(to, &vector, sizeof vector); }
};

template <typename Half>
struct VectorMemory<VectorPair<Half>> {
    static VectorPair<Half> load(const char* from) {
        return {VectorMemory<Half>::load(from), VectorMemory<Half>::load(from + sizeof(Half))};
    }
    static void store(char* to, VectorPair<Half> vector) {
        VectorMemory<Half>::store(to, vector.low);
        VectorMemory<Half>::store(to + sizeof(Half), vector.high);
    }
};

template <typename Vector>
inline Vector load_vector(const void* from) {
    return VectorMemory<Vector>::load(static_cast<const char*>(from));
}

template <typename Vector>
inline void store_vector(void* to, Vector vector) {
    VectorMemory<Vector>::store(static_cast<char*>(to), vector);
}

// Calls body(half) for each half of a vector that has some, else body(vector), and returns the same
// kind of vector. With more vectors: body(half, half, ...).
template <typename Vector, typename Body>
inline Vector in_registers(Vector a, Body body) {
    return body(a);
}
template <typename Half, typename Body>
inline VectorPair<Half> in_registers(VectorPair<Half> a, Body body) {
    return {in_registers(a.low, body), in_registers(a.high, body)};
}
template <typename Vector, typename Body>
inline Vector in_registers(Vector a, Vector b, Body body) {
    return body(a, b);
}
template <typename Half, typename Body>
inline VectorPair<Half> in_registers(VectorPair<Half> a, VectorPair<Half> b, Body body) {
    return {in_registers(a.low, b.low, body), in_registers(a.high, b.high, body)};
}

template <typename Vector, typename Body>
inline Vector in_registers(Vector a, Vector b, Vector c, Body body) {
    return body(a, b, c);
}
template <typename Half, typename Body>
inline VectorPair<Half> in_registers(VectorPair<Half> a, VectorPair<Half> b, VectorPair<Half> c,
                                     Body body) {
    return {in_registers(a.low, b.low, c.low, body), in_registers(a.high, b.high, c.high, body)};
}

}  // namespace
