// 3 x 3 convolutions of stride 1 with as many channels behind as in front, and their two gradients.
//
// A program keeps its tile of the input, with a border of one pixel, in shared memory, where tensor cores read it nine
// times: the kernels of kernels.py load each pixel nine times instead. Arguments, order in memory and sums are theirs.
// A tile is ROWS rows of IMAGES images, in full width; each program has at least one. A pixel takes 16 bytes more than
// its channels in shared memory, so that eight of them beside each other lie in different banks. Products are of 16
// pixels by 8 channels.
//
// Two kernels compute a normalisation besides, of what they read: `norm_conv_forward` the one in front of its
// convolution, `norm_input_gradient` the way back through the one behind it. Every thread changes what it has copied to
// shared memory itself, so that no other has to be waited for, and writes what lies in its program's own tile.

typedef unsigned int u32;
typedef unsigned short bf16;  // its bits

#ifdef __CUDACC__  // tests have their own, for a CPU
__device__ inline u32 at(const void* place) { return (u32)__cvta_generic_to_shared(place); }

// 16 bytes on their way to shared memory, zeros where they are not inside of the image.
__device__ inline void copy_later(bf16* to, const bf16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(at(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

__device__ inline void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait for all groups of copies but the last LATER of them.
template <int LATER>
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

// Four matrices of 8 x 8; each lane names the row of one.
template <bool TRANSPOSED>
__device__ inline void load_four(u32 (&found)[4], const bf16* row) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3]) : "r"(at(row)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3]) : "r"(at(row)) : "memory");
}

// Add a product of 16 x 16 by 16 x 8.
__device__ inline void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline u32 rounded(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

__device__ inline float low(u32 both) { return __uint_as_float(both << 16); }
__device__ inline float high(u32 both) { return __uint_as_float(both & 0xffff0000u); }

// Lane t of four gets what the four have in v[t]: eight channels of one pixel instead of two channels of four.
__device__ inline void turn_over(u32 (&v)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    u32 one = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1), two = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
    if (odd) v[0] = one, v[2] = two;
    else v[1] = one, v[3] = two;
    one = __shfl_xor_sync(~0u, upper ? v[0] : v[2], 2), two = __shfl_xor_sync(~0u, upper ? v[1] : v[3], 2);
    if (upper) v[0] = one, v[1] = two;
    else v[2] = one, v[3] = two;
}

__device__ inline void load_eight(u32 (&v)[4], const bf16* place, bool inside) {
    const uint4 found = inside ? *(const uint4*)place : uint4{0, 0, 0, 0};
    v[0] = found.x, v[1] = found.y, v[2] = found.z, v[3] = found.w;
}

// Eight channels of a pixel of a tile, which has a border of so many pixels.
struct Piece {
    int place, from;    // in shared memory, and in that of the GPU
    bool inside, own;  // of the image; of the tile without its border
};

template <int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int BORDER>
__device__ inline Piece piece_of(u32 i, u32 tile, int expert, int images) {  // without a sign, division is short
    constexpr u32 wide = W + 2 * BORDER, tall = ROWS + 2 * BORDER, bands = H / ROWS;
    const u32 part = i % (C / 8), pixel = i / (C / 8), line = pixel / wide % tall - BORDER;
    const u32 row = tile % bands * ROWS + line, column = pixel % wide - BORDER;  // in front of the first is a large one
    const int image = tile / bands * IMAGES + pixel / (tall * wide);
    const bool inside = image < images && row < H && column < W;
    const int from = ((image * H + (int)row) * W + (int)column) * EXPERTS * C + expert * C + part * 8;
    return {(int)(pixel * (C + 8) + part * 8), from, inside, inside && line < ROWS};
}

// A tile of one expert on its way to shared memory; or TWO tiles of two tensors.
template <int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int THREADS, int BORDER, bool TWO = false>
__device__ inline void fetch(
    bf16* to, const bf16* x, int tile, int expert, int images, bf16* beside = nullptr, const bf16* other = nullptr) {
    constexpr int pieces = IMAGES * (ROWS + 2 * BORDER) * (W + 2 * BORDER) * (C / 8);
    for (int i = threadIdx.x; i < pieces; i += THREADS) {
        const Piece piece = piece_of<C, H, W, EXPERTS, ROWS, IMAGES, BORDER>(i, tile, expert, images);
        const int from = piece.inside ? piece.from : 0;
        copy_later(to + piece.place, x + from, piece.inside);
        if (TWO) copy_later(beside + piece.place, other + from, piece.inside);
    }
}

// What is read: a tensor, or what a normalisation makes of one or of two.
enum { PLAIN, OF_ONE, OF_TWO };

// Change a tile to factors[0] * tile + factors[1] + factors[2] * other, and write what is its own. It has the tile's
// threads, each of which finds what it has fetched.
template <int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int THREADS, int READ, bool RECTIFIED>
__device__ inline void normalise(
    bf16* here, const bf16* other, const float* factors, bf16* made, int tile, int expert, int images) {
    static_assert(THREADS % (C / 8) == 0, "a thread has the same channels of every pixel");
    float factor[3][8];
#pragma unroll
    for (int i = 0; i < 24; i++) factor[i / 8][i % 8] = factors[i / 8 * C + threadIdx.x % (C / 8) * 8 + i % 8];
    for (int i = threadIdx.x; i < IMAGES * (ROWS + 2) * (W + 2) * (C / 8); i += THREADS) {
        const Piece piece = piece_of<C, H, W, EXPERTS, ROWS, IMAGES, 1>(i, tile, expert, images);
        if (!piece.inside) continue;  // is zero, and remains so
        u32 one[4], two[4];
        load_eight(one, here + piece.place, true);
        load_eight(two, other + piece.place, READ == OF_TWO);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float even = low(one[j]) * factor[0][2 * j] + factor[1][2 * j];
            float odd = high(one[j]) * factor[0][2 * j + 1] + factor[1][2 * j + 1];
            if (READ == OF_TWO) even += low(two[j]) * factor[2][2 * j], odd += high(two[j]) * factor[2][2 * j + 1];
            if (RECTIFIED) even = even <= 0 ? 0 : even, odd = odd <= 0 ? 0 : odd;  // NaN remains
            one[j] = rounded(even, odd);
        }
        const uint4 all = {one[0], one[1], one[2], one[3]};
        *(uint4*)(here + piece.place) = all;
        if (piece.own) *(uint4*)(made + piece.from) = all;
    }
}

// Both sums of a channel of an expert, over all programs that have written theirs; for the first C threads. All threads
// take part, four sums each.
template <int C, int THREADS>
__device__ inline float2 sums_of(const float* sums, int programs, float4* room) {
    constexpr int ACROSS = C / 2, DOWN = THREADS / ACROSS;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 8
    for (int p = threadIdx.x / ACROSS; p < programs; p += DOWN) {
        const float4 one = *(const float4*)(sums + p * 2 * C + threadIdx.x % ACROSS * 4);
        sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
    }
    room[threadIdx.x] = sum;
    __syncthreads();
    float2 both = {0, 0};
    if (threadIdx.x < C)
        for (int down = 0; down < DOWN; down++) {
            both.x += ((float*)room)[down * 2 * C + threadIdx.x];
            both.y += ((float*)room)[down * 2 * C + C + threadIdx.x];
        }
    return both;
}

// Where a pixel of a tile begins in shared memory, of a tile with a border: the upper left of the nine that it sees.
template <int C, int W, int ROWS>
__device__ inline int first_seen(int pixel) {
    const int image = pixel / (ROWS * W), row = pixel / W % ROWS, column = pixel % W;
    return ((image * (ROWS + 2) + row) * (W + 2) + column) * (C + 8);
}

// Four lanes share eight channels, N * 2 times: of one pixel of a product, then of that eight below. Each gets its own.
struct Slot {
    int place;
    bool inside;
};

template <int N, int C, int EXPERTS>
struct Slots {
    int first, pixels, expert;  // pixels, of which there are so many
    __device__ inline Slot at(int t) const {
        const int slot = t % (N / 2) * 4 + threadIdx.x % 4, pixel = first + t / (N / 2) * 16 + slot / N * 8;
        return {(pixel * EXPERTS + expert) * C + slot % N * 8, pixel < pixels};
    }
};

// What a gradient meets on its way, of several slots at once: else each would wait for memory anew.
template <int GROUP>
struct Read {
    u32 passed[GROUP][4], normal[GROUP][4], beside[GROUP][4];
    template <bool RESIDUAL, class All>
    __device__ inline void fetch(
        const All& slots, int start, const bf16* activation, const bf16* below, const bf16* residual) {
#pragma unroll
        for (int t = 0; t < GROUP; t++) {
            const Slot slot = slots.at(start + t);
            load_eight(passed[t], activation + slot.place, slot.inside);
            load_eight(normal[t], below + slot.place, slot.inside);
            load_eight(beside[t], residual + slot.place, RESIDUAL && slot.inside);
        }
    }
};

// A convolution, with the sums of its outputs and of their squares; or (BACKWARD) its gradient of the input, plus the
// shortcut's (RESIDUAL), through the rectifier in front of both, with the sums that the normalisation below wants.
// `factors` writes those of the normalisation of x and `other`, which is written to `made`, if there is one to READ.
template <
    int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int WARPS, bool BACKWARD, bool RESIDUAL, int READ,
    class Factors>
__device__ inline void convolution(
    const bf16* x, const bf16* weight, bf16* y, float* sums, const bf16* residual, const bf16* activation,
    const bf16* below, const float* stats, int images, const bf16* other, bf16* made, const Factors& factors) {
    constexpr int THREADS = WARPS * 32, LINE = C + 8, WIDE = W + 2, PIXELS = IMAGES * ROWS * W;
    constexpr int TILE = IMAGES * (ROWS + 2) * WIDE * LINE;
    constexpr int M = PIXELS / (16 * WARPS), N = C / 8;  // products of a warp, down and across
    constexpr int OWN = C == 64 ? 2 : 1;                 // times eight channels that a lane sums, 32 apart
    constexpr int SLOTS = M * N / 2, GROUP = SLOTS < 4 ? SLOTS : 4;
    static_assert(PIXELS == WARPS * M * 16 && (C == 16 || C == 32 || C == 64), "lanes take whole products");
    extern __shared__ __align__(16) bf16 shared[];
    bf16 *weights = shared, *tiles = shared + 9 * C * LINE;
    const int expert = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, programs = gridDim.x;
    const int many = (images * H * W + PIXELS - 1) / PIXELS;
    bf16* beside = tiles + (many > programs ? 2 : 1) * TILE;  // of `other`, which no second turn needs to keep
    float* known = (float*)(beside + (READ == OF_TWO ? TILE : 0));

    for (int i = threadIdx.x; i < 9 * C * (C / 8); i += THREADS) {
        const int part = i % (C / 8), tap = i / (C / 8) % 9, o = i / (9 * C / 8);
        copy_later(weights + (tap * C + o) * LINE + part * 8, weight + expert * 9 * C * C + i * 8, true);
    }
    int tile = blockIdx.x, turn = 0;
    fetch<C, H, W, EXPERTS, ROWS, IMAGES, THREADS, 1, READ == OF_TWO>(tiles, x, tile, expert, images, beside, other);
    end_of_copies();
    if constexpr (READ != PLAIN) {
        static_assert(THREADS >= C, "a thread for each channel");
        factors(known, (float4*)(known + 3 * C));
        __syncthreads();
    }

    int seen[M];
#pragma unroll
    for (int m = 0; m < M; m++)
        seen[m] = first_seen<C, W, ROWS>((warp * M + m) * 16 + lane % 16) + lane / 16 * 8;
    const int channels = lane % (C == 16 ? 2 : 4) * 8;  // the first that this lane sums
    float first[OWN][8] = {}, second[OWN][8] = {};

    for (; tile < many; tile += programs, turn ^= 1) {
        const int later = tile + programs;
        bf16 *here = tiles + turn * TILE, *next = tiles + (turn ^ 1) * TILE;
        if (READ != PLAIN) {
            wait_for_copies<0>();
            normalise<C, H, W, EXPERTS, ROWS, IMAGES, THREADS, READ, !BACKWARD>(
                here, beside, known, made, tile, expert, images);
        }
        if (later < many) {
            fetch<C, H, W, EXPERTS, ROWS, IMAGES, THREADS, 1, READ == OF_TWO>(
                next, x, later, expert, images, beside, other);
            end_of_copies();
            if (READ == PLAIN) wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        const Slots<N, C, EXPERTS> slots = {tile * PIXELS + warp * M * 16 + lane / 4, images * H * W, expert};
        Read<GROUP> read;
        if (BACKWARD) read.template fetch<RESIDUAL>(slots, 0, activation, below, residual);
        float total[M][N][4] = {};
#pragma unroll 1
        for (int ky = 0; ky < 3; ky++)
#pragma unroll
            for (int kx = 0; kx < 3; kx++)
#pragma unroll
                for (int k = 0; k < C; k += 16) {
                    u32 b[N / 2][4];
#pragma unroll
                    for (int n = 0; n < N / 2; n++) {  // weights of a tap: 16 channels that are summed, by 16 others
                        const int tap = ky * 3 + kx, depth = k + lane / 8 % 2 * 8, across = n * 16 + lane / 16 * 8;
                        if (BACKWARD)
                            load_four<true>(b[n], weights + ((8 - tap) * C + depth + lane % 8) * LINE + across);
                        else
                            load_four<false>(b[n], weights + (tap * C + across + lane % 8) * LINE + depth);
                    }
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        u32 a[4];
                        load_four<false>(a, here + seen[m] + (ky * WIDE + kx) * LINE + k);
#pragma unroll
                        for (int n = 0; n < N; n++)
                            multiply(total[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
                    }
                }
#pragma unroll
        for (int t = 0; t < SLOTS; t++) {
            if (BACKWARD && t && t % GROUP == 0) read.template fetch<RESIDUAL>(slots, t, activation, below, residual);
            const Slot slot = slots.at(t);
            const int m = t / (N / 2), q = t % (N / 2), own = q % OWN, r = t % GROUP;
            u32 value[4], other[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* two = total[m][(q * 4 + i) % N] + (q * 4 + i) / N * 2;
                value[i] = BACKWARD ? __float_as_uint(two[0]) : rounded(two[0], two[1]);
                other[i] = __float_as_uint(two[1]);
            }
            turn_over(value);
            if (BACKWARD) {
                turn_over(other);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float even = __uint_as_float(value[i]) + low(read.beside[r][i]);
                    const float odd = __uint_as_float(other[i]) + high(read.beside[r][i]);
                    const u32 passed = read.passed[r][i];
                    value[i] = rounded(low(passed) > 0 ? even : 0, high(passed) > 0 ? odd : 0);
                }
            }
            // Behind the last image all numbers are zero.
            if (slot.inside) *(uint4*)(y + slot.place) = uint4{value[0], value[1], value[2], value[3]};
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float one = i % 2 ? high(value[i / 2]) : low(value[i / 2]);
                first[own][i] += one;
                if (BACKWARD)
                    second[own][i] += one * (i % 2 ? high(read.normal[r][i / 2]) : low(read.normal[r][i / 2]));
                else
                    second[own][i] += one * one;
            }
        }
        __syncthreads();
    }

    float* of_warps = (float*)shared;  // in the place of weights
#pragma unroll
    for (int i = 0; i < OWN * 8; i++) {
        float one = first[i / 8][i % 8], two = second[i / 8][i % 8];
        if (BACKWARD) {  // the sum of products with what is normalised, from that of products with what is not
            const float* mean = stats + 2 * expert * C + channels + i / 8 * 32 + i % 8;
            two = (two - *mean * one) * mean[C];  // behind it lies the reciprocal deviation
        }
#pragma unroll
        for (int apart = C == 16 ? 2 : 4; apart < 32; apart *= 2) {
            one += __shfl_xor_sync(~0u, one, apart);
            two += __shfl_xor_sync(~0u, two, apart);
        }
        const int place = warp * 2 * C + channels + i / 8 * 32 + i % 8;
        if (lane < C / 8 && lane < 4) of_warps[place] = one, of_warps[place + C] = two;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * C; i += THREADS) {
        float sum = 0;
        for (int each = 0; each < WARPS; each++) sum += of_warps[each * 2 * C + i];
        sums[(expert * programs + blockIdx.x) * 2 * C + i] = sum;
    }
}

// Of all kernels: AT_ONCE programs are to find registers on a processor; 0 leaves that to the compiler.
template <int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int AT_ONCE, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, AT_ONCE) conv_forward(
    const bf16* x, const bf16* weight, bf16* y, float* sums, int pixels) {
    convolution<C, H, W, EXPERTS, ROWS, IMAGES, WARPS, false, false, PLAIN>(
        x, weight, y, sums, nullptr, nullptr, nullptr, nullptr, pixels / (H * W), nullptr, nullptr, 0);
}

// `norm_forward` of kernels.py, and the convolution of its output.
template <int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int AT_ONCE, int WARPS, int SHORTCUT>
__global__ void __launch_bounds__(WARPS * 32, AT_ONCE) norm_conv_forward(
    const bf16* before, const float* sums_before, const float* gamma, const float* beta, float* running_mean,
    float* running_variance, float* stats, const bf16* shortcut, bf16* out, int pixels, int programs, float momentum,
    float eps, const bf16* weight, bf16* y, float* sums, int pixels_behind) {
    const auto factors = [&](float* known, float4* room) {
        const int expert = blockIdx.y, c = threadIdx.x, channel = expert * C + c;
        const float2 both = sums_of<C, WARPS * 32>(sums_before + expert * programs * 2 * C, programs, room);
        if (c >= C) return;
        const float mean = both.x / pixels, found = both.y / pixels - mean * mean;
        const float variance = found < 0 ? 0 : found, rstd = 1 / sqrtf(variance + eps);
        const float scale = gamma[channel] * rstd;
        known[c] = scale, known[C + c] = beta[channel] - mean * scale, known[2 * C + c] = 1;
        if (blockIdx.x) return;
        stats[2 * expert * C + c] = mean, stats[(2 * expert + 1) * C + c] = rstd;
        running_mean[channel] += momentum * (mean - running_mean[channel]);
        running_variance[channel] += momentum * (variance * (pixels / (pixels - 1.0f)) - running_variance[channel]);
    };
    convolution<C, H, W, EXPERTS, ROWS, IMAGES, WARPS, false, false, SHORTCUT ? OF_TWO : OF_ONE>(
        before, weight, y, sums, nullptr, nullptr, nullptr, nullptr, pixels_behind / (H * W), shortcut, out, factors);
}

template <int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int AT_ONCE, int WARPS, int RESIDUAL>
__global__ void __launch_bounds__(WARPS * 32, AT_ONCE) input_gradient(
    const bf16* dy, const bf16* weight, const bf16* residual, const bf16* activation, const bf16* y,
    const float* stats, bf16* dz, float* sums, int images) {
    convolution<C, H, W, EXPERTS, ROWS, IMAGES, WARPS, true, RESIDUAL != 0, PLAIN>(
        dy, weight, dz, sums, residual, activation, y, stats, images, nullptr, nullptr, 0);
}

// `norm_backward` of kernels.py, and the gradient of the input from its output, dy.
template <int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int AT_ONCE, int WARPS, int RESIDUAL>
__global__ void __launch_bounds__(WARPS * 32, AT_ONCE) norm_input_gradient(
    const bf16* dz_behind, const bf16* y_behind, const float* sums_behind, const float* stats_behind,
    const float* gamma, bf16* dy, float* dgamma, float* dbeta, int pixels, int programs, const bf16* weight,
    const bf16* residual, const bf16* activation, const bf16* y, const float* stats, bf16* dz, float* sums,
    int images) {
    const auto factors = [&](float* known, float4* room) {
        const int expert = blockIdx.y, c = threadIdx.x, channel = expert * C + c;
        const float2 both = sums_of<C, WARPS * 32>(sums_behind + expert * programs * 2 * C, programs, room);
        if (c >= C) return;
        const float mean = stats_behind[2 * expert * C + c], rstd = stats_behind[(2 * expert + 1) * C + c];
        const float scale = gamma[channel] * rstd, slope = scale * rstd * both.y / pixels;
        known[c] = scale, known[C + c] = mean * slope - scale * both.x / pixels, known[2 * C + c] = -slope;
        if (blockIdx.x) return;
        dgamma[channel] = both.y, dbeta[channel] = both.x;
    };
    convolution<C, H, W, EXPERTS, ROWS, IMAGES, WARPS, true, RESIDUAL != 0, OF_TWO>(
        dz_behind, weight, dz, sums, residual, activation, y, stats, images, y_behind, dy, factors);
}

// Parts of the gradient of the weights, SHARES of them from each program. A warp has three taps in a row of the kernel,
// one of GROUPS shares of the outputs' channels, and one of SHARES shares of the products.
template <int C, int H, int W, int EXPERTS, int ROWS, int IMAGES, int AT_ONCE, int GROUPS, int SHARES>
__global__ void __launch_bounds__(3 * GROUPS * SHARES * 32, AT_ONCE) weight_gradient(
    const bf16* dy, const bf16* x, float* partial, int images) {
    constexpr int THREADS = 3 * GROUPS * SHARES * 32, LINE = C + 8, WIDE = W + 2, PIXELS = IMAGES * ROWS * W;
    constexpr int BORDERED = IMAGES * (ROWS + 2) * WIDE * LINE, TILE = BORDERED + PIXELS * LINE;
    constexpr int M = C / 16 / GROUPS, N = C / 8;
    static_assert(PIXELS % (16 * SHARES) == 0 && M * GROUPS * 16 == C, "warps take whole products");
    extern __shared__ __align__(16) bf16 shared[];
    const int expert = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, programs = gridDim.x;
    const int ky = warp % 3, start = warp / 3 % GROUPS * M * 16, share = warp / (3 * GROUPS);
    const int many = (images * H * W + PIXELS - 1) / PIXELS;
    int tile = blockIdx.x, turn = 0;
    fetch<C, H, W, EXPERTS, ROWS, IMAGES, THREADS, 1>(shared, x, tile, expert, images);
    fetch<C, H, W, EXPERTS, ROWS, IMAGES, THREADS, 0>(shared + BORDERED, dy, tile, expert, images);
    end_of_copies();
    float total[3][M][N][4] = {};
    for (; tile < many; tile += programs, turn ^= 1) {
        if (tile + programs < many) {
            bf16* next = shared + (turn ^ 1) * TILE;
            fetch<C, H, W, EXPERTS, ROWS, IMAGES, THREADS, 1>(next, x, tile + programs, expert, images);
            fetch<C, H, W, EXPERTS, ROWS, IMAGES, THREADS, 0>(next + BORDERED, dy, tile + programs, expert, images);
            end_of_copies();
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        const bf16 *here = shared + turn * TILE + ky * WIDE * LINE, *flow = shared + turn * TILE + BORDERED;
#pragma unroll 1
        for (int p = share * 16; p < PIXELS; p += SHARES * 16) {
            const int seen = first_seen<C, W, ROWS>(p + lane % 16) + lane / 16 * 8;
            u32 a[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
                const int pixel = p + lane / 16 * 8 + lane % 8, across = start + m * 16 + lane / 8 % 2 * 8;
                load_four<true>(a[m], flow + pixel * LINE + across);
            }
#pragma unroll
            for (int kx = 0; kx < 3; kx++)
#pragma unroll
                for (int n = 0; n < N; n += 2) {
                    u32 b[4];
                    load_four<true>(b, here + seen + kx * LINE + n * 8);
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        multiply(total[kx][m][n], a[m], b[0], b[1]);
                        multiply(total[kx][m][n + 1], a[m], b[2], b[3]);
                    }
                }
        }
        __syncthreads();
    }
    float* part = partial + ((blockIdx.x * SHARES + share) * EXPERTS + expert) * C * 9 * C;
#pragma unroll
    for (int i = 0; i < 3 * M * N * 2; i++) {
        const int half = i % 2, n = i / 2 % N, m = i / (2 * N) % M, kx = i / (2 * N * M);
        const int o = start + m * 16 + half * 8 + lane / 4;
        const float* two = total[kx][m][n] + half * 2;
        *(float2*)(part + (o * 9 + ky * 3 + kx) * C + n * 8 + lane % 4 * 2) = float2{two[0], two[1]};
    }
}

// Asks whether this machine compiles and launches at all.
template <int>
__global__ void nothing() {}
