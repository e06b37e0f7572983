#include "cpu/threading/pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

// How long a waiting thread spins before it sleeps. Waking up costs about ten microseconds, and so
// does the gap between two kernels of a step. A thread that was preempted spins only briefly: other
// threads need the core.
constexpr auto kLongSpin = std::chrono::microseconds(100);
constexpr auto kShortSpin = std::chrono::microseconds(3);
constexpr auto kPreemptionMemory = std::chrono::milliseconds(20);
// A system call costs a microsecond, as much as waiting for a small kernel.
constexpr auto kDetectionInterval = std::chrono::microseconds(200);

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Detects that this thread was preempted in the last milliseconds.
class PreemptionDetector {
public:
    bool was_preempted() {
        const auto now = Clock::now();
#if defined(__linux__)
        rusage usage;
        if (now >= next_ && getrusage(RUSAGE_THREAD, &usage) == 0) {
            next_ = now + kDetectionInterval;
            if (usage.ru_nivcsw != switches_) until_ = now + kPreemptionMemory;
            switches_ = usage.ru_nivcsw;
        }
#endif
        return now < until_;
    }

private:
    long switches_ = 0;
    Clock::time_point until_{}, next_{};
};

// Spins until `ready` or a timeout; returns the last value of `ready`.
template <typename Ready>
bool spin_until(Clock::duration max_spin, Ready ready) {
    const auto end = Clock::now() + max_spin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (ready()) return true;
            pause();
        }
    } while (Clock::now() < end);
    return ready();
}

class Pool {
public:
    int64_t threads() const { return threads_.load(std::memory_order_relaxed); }

    void set_threads(int64_t count) {
        threads_.store(std::max<int64_t>(1, count), std::memory_order_relaxed);
    }

    void run(void (*work)(void*), void* context, int64_t helpers) {
        helpers = std::min(helpers, threads() - 1);
        std::unique_lock<std::mutex> own_job(job_, std::try_to_lock);
        if (helpers <= 0 || !own_job) {
            work(context);
            return;
        }
        for (; started_ < helpers; ++started_) std::thread([this] { help_loop(); }).detach();
        work_ = work;
        context_ = context;
        const uint64_t number = (gate_.load(std::memory_order_relaxed) >> 32) + 1;
        gate_.store(number << 32 | uint64_t(helpers) << 16, std::memory_order_seq_cst);
        if (asleep_.load(std::memory_order_seq_cst) > 0) {
            {
                std::lock_guard<std::mutex> lock(sleep_);
            }
            for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
        }
        work(context);
        gate_.fetch_and(~(uint64_t(0xffff) << 16),
                        std::memory_order_acq_rel);  // no more helpers may enter
        const auto empty = [this] { return (gate_.load(std::memory_order_acquire) & 0xffff) == 0; };
        static thread_local PreemptionDetector detector;
        if (empty() || spin_until(detector.was_preempted() ? kShortSpin : kLongSpin, empty)) return;
        std::unique_lock<std::mutex> lock(sleep_);
        waits_ = true;
        done_.wait(lock, empty);
        waits_ = false;
    }

private:
    void help_loop() {
#if defined(__linux__)
        // Helper threads run as SCHED_BATCH so they never preempt the caller.
        const sched_param none{};
        pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
        pthread_setname_np(pthread_self(), "kernel-helper");
#endif
        PreemptionDetector detector;
        uint64_t seen = 0;
        for (;;) {
            const auto called = [&] { return gate_.load(std::memory_order_acquire) >> 32 != seen; };
            if (!spin_until(detector.was_preempted() ? kShortSpin : kLongSpin, called)) {
                std::unique_lock<std::mutex> lock(sleep_);
                asleep_.fetch_add(1, std::memory_order_seq_cst);
                wake_.wait(lock,
                           [&] { return gate_.load(std::memory_order_seq_cst) >> 32 != seen; });
                asleep_.fetch_sub(1, std::memory_order_relaxed);
            }
            uint64_t gate = gate_.load(std::memory_order_acquire);
            seen = gate >> 32;
            // Enter while the job is open: one free slot less, one helper more.
            while ((gate >> 16 & 0xffff) != 0 && gate >> 32 == seen) {
                if (!gate_.compare_exchange_weak(gate, gate - (1 << 16) + 1,
                                                 std::memory_order_acq_rel))
                    continue;
                work_(context_);
                if ((gate_.fetch_sub(1, std::memory_order_acq_rel) & 0xffffffff) == 1) {
                    std::lock_guard<std::mutex> lock(sleep_);
                    if (waits_) done_.notify_one();
                }
                break;
            }
        }
    }

    std::atomic<int64_t> threads_{1};
    std::mutex job_;
    int64_t started_ = 0;
    void (*work_)(void*) = nullptr;
    void* context_ = nullptr;
    // Job number (32 bits), free helper slots (16), helpers inside (16).
    alignas(64) std::atomic<uint64_t> gate_{0};
    alignas(64) std::atomic<int64_t> asleep_{0};
    std::mutex sleep_;
    std::condition_variable wake_, done_;
    bool waits_ = false;
};

// Never destroyed: helpers may still spin when the process exits.
Pool& global_pool() {
    static Pool* made = new Pool;
    return *made;
}

}  // namespace

namespace pool {

int64_t threads() { return global_pool().threads(); }
void set_threads(int64_t count) { global_pool().set_threads(count); }
void run(void (*work)(void*), void* context, int64_t helpers) {
    global_pool().run(work, context, helpers);
}

}  // namespace pool
