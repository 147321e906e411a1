// What CUDA kernels need to run on a CPU, for tests: the threads of a block take turns, those of one warp as long as
// they need no other one.
//
// Copies to shared memory arrive when they are waited for, and not before; or early, as soon as they are begun. What is
// right in both ways waits for copies, and for readers of what copies replace. Shared memory begins as NaN.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __launch_bounds__(threads, ...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Place { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static Place threadIdx, blockIdx, gridDim;
alignas(16) unsigned short shared[1 << 17];

namespace cpu {
struct Copy { void* to; const void* from; };
struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 16);
    std::vector<std::vector<Copy>> copies{1};
    bool done = false;
    const struct Barrier* waits = nullptr;
    unsigned turn = 0;
};
struct Barrier { unsigned size, arrived = 0, turn = 0; };
struct Warp {
    Barrier barrier{32};
    const void* rows[32];
    unsigned numbers[32][6];
};
static std::vector<std::unique_ptr<Thread>> threads;
static std::vector<Warp> warps;
static Barrier whole;
static ucontext_t scheduler;
static std::function<void()> body;
static unsigned present;
static bool early = false;
static std::mt19937 random(0);

static void wait(Barrier& barrier) {
    const unsigned turn = barrier.turn;
    if (++barrier.arrived == barrier.size) barrier.arrived = 0, barrier.turn++;
    threads[present]->waits = &barrier, threads[present]->turn = turn;
    while (barrier.turn == turn) {
        swapcontext(&threads[present]->context, &scheduler);
    }
    threads[present]->waits = nullptr;
}
static Warp& warp() { return warps[present / 32]; }
static void start() { body(), threads[present]->done = true, swapcontext(&threads[present]->context, &scheduler); }
static float number(unsigned bits) {
    float value;
    return std::memcpy(&value, &bits, 4), value;
}

// Run all blocks of so many threads; return how many bytes behind their shared memory they have written.
static int launch(
    unsigned programs, unsigned experts, unsigned size, unsigned bytes, std::function<void()> kernel) {
    int behind = 0;
    body = kernel, gridDim = {programs, experts};
    for (unsigned y = 0; y < experts; y++)
        for (unsigned x = 0; x < programs; x++) {
            std::memset(shared, 0xff, sizeof shared);
            threads.clear(), warps.assign(size / 32, Warp()), whole = Barrier{size};
            for (unsigned i = 0; i < size; i++) {
                threads.push_back(std::make_unique<Thread>());
                ucontext_t& context = threads[i]->context;
                getcontext(&context);
                context.uc_stack.ss_sp = threads[i]->stack.data(), context.uc_stack.ss_size = threads[i]->stack.size();
                context.uc_link = &scheduler;
                makecontext(&context, start, 0);
            }
            while (std::any_of(threads.begin(), threads.end(), [](auto& thread) { return !thread->done; })) {
                const unsigned warp = random() % (size / 32), last = random() % 2 ? 31 : 0;
                for (bool running = true; running;) {
                    running = false;
                    for (unsigned lane = 0; lane < 32; lane++) {
                        const unsigned i = warp * 32 + (lane ^ last);  // forwards or backwards
                        const Thread& thread = *threads[i];
                        if (thread.done || (thread.waits == &whole && thread.turn == whole.turn)) continue;
                        running = true, present = i;
                        threadIdx = {i, 0}, blockIdx = {x, y};
                        swapcontext(&scheduler, &threads[i]->context);
                    }
                }
            }
            for (unsigned i = bytes / 2; i < sizeof shared / 2; i++) behind += 2 * (shared[i] != 0xffff);
        }
    return behind;
}
}  // namespace cpu

static void __syncthreads() { cpu::wait(cpu::whole); }
static float __uint_as_float(unsigned bits) { return cpu::number(bits); }
static unsigned __float_as_uint(float value) {
    unsigned bits;
    return std::memcpy(&bits, &value, 4), bits;
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, int apart) {
    cpu::Warp& warp = cpu::warp();
    const unsigned lane = cpu::present % 32;
    std::memcpy(warp.numbers[lane], &value, 4);
    cpu::wait(warp.barrier);
    std::memcpy(&value, warp.numbers[lane ^ apart], 4);
    cpu::wait(warp.barrier);
    return value;
}

static void copy_later(unsigned short* to, const unsigned short* from, bool inside) {
    cpu::threads[cpu::present]->copies.back().push_back({to, inside ? from : nullptr});
    if (cpu::early) inside ? std::memcpy(to, from, 16) : std::memset(to, 0, 16);
}
static void end_of_copies() { cpu::threads[cpu::present]->copies.emplace_back(); }
template <int LATER>
static void wait_for_copies() {
    auto& copies = cpu::threads[cpu::present]->copies;
    while (copies.size() > LATER + 1) {
        for (cpu::Copy& each : copies.front())
            if (!cpu::early) each.from ? std::memcpy(each.to, each.from, 16) : std::memset(each.to, 0, 16);
        copies.erase(copies.begin());
    }
}
template <bool TRANSPOSED>
static void load_four(unsigned (&found)[4], const unsigned short* row) {
    cpu::Warp& warp = cpu::warp();
    const unsigned lane = cpu::present % 32;
    warp.rows[lane] = row;
    cpu::wait(warp.barrier);
    for (int q = 0; q < 4; q++) {
        unsigned both = 0;
        for (unsigned i = 0; i < 2; i++) {
            const unsigned down = TRANSPOSED ? lane % 4 * 2 + i : lane / 4, right = TRANSPOSED ? lane / 4 : lane % 4 * 2 + i;
            both |= (unsigned)((const unsigned short*)warp.rows[q * 8 + down])[right] << 16 * i;
        }
        found[q] = both;
    }
    cpu::wait(warp.barrier);
}
static void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    cpu::Warp& warp = cpu::warp();
    const unsigned lane = cpu::present % 32;
    std::memcpy(warp.numbers[lane], a, 16), warp.numbers[lane][4] = b0, warp.numbers[lane][5] = b1;
    cpu::wait(warp.barrier);
    for (int i = 0; i < 4; i++) {
        const unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const unsigned one = warp.numbers[row * 4 + k % 8 / 2][k / 8 * 2 + i / 2];
            const unsigned two = warp.numbers[column * 4 + k % 8 / 2][4 + k / 8];
            sum[i] += cpu::number(k % 2 ? one & 0xffff0000u : one << 16) * cpu::number(k % 2 ? two & 0xffff0000u : two << 16);
        }
    }
    cpu::wait(warp.barrier);
}
static unsigned rounded(float low, float high) {
    unsigned both = 0, i = 0;
    for (float value : {low, high}) {
        unsigned bits = __float_as_uint(value);
        bits = value == value ? bits + 0x7fff + (bits >> 16 & 1) : bits;
        both |= bits >> 16 << 16 * i++;
    }
    return both;
}
extern "C" void let_copies_arrive_early(int yes) { cpu::early = yes; }
