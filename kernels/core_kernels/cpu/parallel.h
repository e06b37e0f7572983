// Work shared out in small pieces: a core that is taken away keeps the one piece it has begun, never a share of all.
//
// Each worker goes through neighbouring pieces, so that what it fetches ahead is what it needs next: into its own cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "pool.h"

namespace {

constexpr int64_t kMostWorkers = 128;

// What is left to do, a range of pieces for each worker. Piece numbers have 31 bits.
struct Shares {
    Shares(int64_t count, int64_t workers) : workers(workers) {
        for (int64_t w = 0; w < workers; ++w)
            left[w].range.store(range(count * w / workers, count * (w + 1) / workers), std::memory_order_relaxed);
    }

    static uint64_t range(int64_t first, int64_t end) { return uint64_t(first) << 32 | uint64_t(end); }
    static int64_t first_of(uint64_t range) { return int64_t(range >> 32); }
    static int64_t end_of(uint64_t range) { return int64_t(range & 0xffffffff); }

    struct alignas(64) Left {
        std::atomic<uint64_t> range;
    };

    const int64_t workers;
    std::atomic<int64_t> entered{0};
    Left left[kMostWorkers];
};

// The pieces of one worker: its own range, then halves of what others have left, from the end.
class Pieces {
public:
    explicit Pieces(Shares& shares)
        : shares_(shares), own_(shares.left[shares.entered.fetch_add(1, std::memory_order_relaxed)].range) {}

    bool next(int64_t* piece) {
        do {
            uint64_t range = own_.load(std::memory_order_relaxed);
            while (Shares::first_of(range) < Shares::end_of(range))
                if (own_.compare_exchange_weak(range, range + (uint64_t(1) << 32), std::memory_order_relaxed)) {
                    *piece = Shares::first_of(range);
                    return true;
                }
        } while (take_half());
        return false;
    }

    // Whether the worker's next piece will be the neighbour of its last one, unless somebody takes it first.
    bool more() const {
        const uint64_t range = own_.load(std::memory_order_relaxed);
        return Shares::first_of(range) < Shares::end_of(range);
    }

private:
    // Takes half of what the worker with the most left has, or says that there is none. Only its owner fills an empty range.
    bool take_half() {
        for (;;) {
            std::atomic<uint64_t>* from = nullptr;
            uint64_t found = 0;
            int64_t most = 0;
            for (int64_t w = 0; w < shares_.workers; ++w) {
                const uint64_t range = shares_.left[w].range.load(std::memory_order_relaxed);
                const int64_t left = Shares::end_of(range) - Shares::first_of(range);
                if (left > most) most = left, found = range, from = &shares_.left[w].range;
            }
            if (!from) return false;
            const int64_t end = Shares::end_of(found), middle = end - (most + 1) / 2;
            if (!from->compare_exchange_strong(found, Shares::range(Shares::first_of(found), middle),
                                               std::memory_order_relaxed))
                continue;
            own_.store(Shares::range(middle, end), std::memory_order_relaxed);
            return true;
        }
    }

    Shares& shares_;
    std::atomic<uint64_t>& own_;
};

inline int64_t max_workers() { return std::min(pool::threads(), kMostWorkers); }

// Calls worker(pieces) on as many threads as pay; each takes pieces until there are none.
template <typename Worker>
inline void share_out(int64_t count, bool pays, Worker worker) {
    const int64_t workers = pays ? std::max<int64_t>(1, std::min(max_workers(), count)) : 1;
    Shares shares(count, workers);
    struct Job {
        Worker& worker;
        Shares& shares;
    } job{worker, shares};
    const auto work = [](void* given) {
        Job& job = *static_cast<Job*>(given);
        Pieces pieces(job.shares);
        job.worker(pieces);
    };
    workers > 1 ? pool::run(work, &job, workers - 1) : work(&job);
}

}  // namespace
