// Work stealing over small items: a preempted core delays only the one item it has begun.
//
// Each worker processes consecutive items, so that its prefetches go to its own cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cpu/threading/pool.h"

namespace {

constexpr int64_t kMaxWorkers = 128;

// Remaining work: a range of items per worker. Item numbers have 31 bits.
struct WorkRanges {
    WorkRanges(int64_t count, int64_t workers) : workers(workers) {
        for (int64_t w = 0; w < workers; ++w)
            left[w].range.store(range(count * w / workers, count * (w + 1) / workers),
                                std::memory_order_relaxed);
    }

    static uint64_t range(int64_t first, int64_t end) {
        return uint64_t(first) << 32 | uint64_t(end);
    }
    static int64_t first_of(uint64_t range) { return int64_t(range >> 32); }
    static int64_t end_of(uint64_t range) { return int64_t(range & 0xffffffff); }

    struct alignas(64) Left {
        std::atomic<uint64_t> range;
    };

    const int64_t workers;
    std::atomic<int64_t> entered{0};
    Left left[kMaxWorkers];
};

// The items of one worker: its own range, then stolen halves of other ranges, from the end.
class WorkItems {
public:
    explicit WorkItems(WorkRanges& shares)
        : shares_(shares),
          own_(shares.left[shares.entered.fetch_add(1, std::memory_order_relaxed)].range) {}

    bool next(int64_t* item) {
        do {
            uint64_t range = own_.load(std::memory_order_relaxed);
            while (WorkRanges::first_of(range) < WorkRanges::end_of(range))
                if (own_.compare_exchange_weak(range, range + (uint64_t(1) << 32),
                                               std::memory_order_relaxed)) {
                    *item = WorkRanges::first_of(range);
                    return true;
                }
        } while (steal_half());
        return false;
    }

    // True if the worker's next item follows its last one, unless it is stolen first.
    bool has_next() const {
        const uint64_t range = own_.load(std::memory_order_relaxed);
        return WorkRanges::first_of(range) < WorkRanges::end_of(range);
    }

private:
    // Steals half of the largest remaining range; false if there is none. Only its owner fills an
    // empty range.
    bool steal_half() {
        for (;;) {
            std::atomic<uint64_t>* from = nullptr;
            uint64_t found = 0;
            int64_t largest = 0;
            for (int64_t w = 0; w < shares_.workers; ++w) {
                const uint64_t range = shares_.left[w].range.load(std::memory_order_relaxed);
                const int64_t left = WorkRanges::end_of(range) - WorkRanges::first_of(range);
                if (left > largest) largest = left, found = range, from = &shares_.left[w].range;
            }
            if (!from) return false;
            const int64_t end = WorkRanges::end_of(found), middle = end - (largest + 1) / 2;
            if (!from->compare_exchange_strong(
                    found, WorkRanges::range(WorkRanges::first_of(found), middle),
                    std::memory_order_relaxed))
                continue;
            own_.store(WorkRanges::range(middle, end), std::memory_order_relaxed);
            return true;
        }
    }

    WorkRanges& shares_;
    std::atomic<uint64_t>& own_;
};

inline int64_t max_workers() { return std::min(pool::threads(), kMaxWorkers); }

// Calls worker(items) on as many threads as pay; each takes items until none are left.
template <typename Worker>
inline void run_workers(int64_t count, bool pays, Worker worker) {
    const int64_t workers = pays ? std::max<int64_t>(1, std::min(max_workers(), count)) : 1;
    WorkRanges shares(count, workers);
    struct Job {
        Worker& worker;
        WorkRanges& shares;
    } job{worker, shares};
    const auto work = [](void* given) {
        Job& job = *static_cast<Job*>(given);
        WorkItems items(job.shares);
        job.worker(items);
    };
    workers > 1 ? pool::run(work, &job, workers - 1) : work(&job);
}

}  // namespace
