// The layers of a native net, in half precision with single-precision sums.
//
// fill         random numbers, evenly spread over +-limit; their second moment is limit * limit / 3
// im2col       the patches of a convolution as rows of a matrix, channels last, zeros outside of the image and behind `taps`
// elementwise  a leaky ReLU that keeps the second moment, of one input or of the second less the first, so that layers in a row do not
//              let numbers grow; the second input is read from `shift` on
// gemm         C[m][n] = sum over k of A[m][k] * W[n][k], 128 x 128 tiles on tensor cores (mma.m16n8k16, from Ampere on)
//
// Halves are handled as bits, because NVRTC comes without cuda_fp16.h. Compiled to net.ptx by scripts/make_ptx.py.

typedef unsigned short half_bits;
typedef unsigned long long u64;

__device__ static unsigned pack(float low, float high)
{
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ static float2 unpack(unsigned both)
{
    float2 out;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(out.x), "=f"(out.y) : "r"(both));
    return out;
}

__device__ static float noise(u64 x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    return (float)(x >> 40) * (2.0f / 16777216.0f) - 1.0f;
}

extern "C" __global__ void fill(unsigned *out, u64 pairs, float limit, u64 seed)
{
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += step) {
        u64 x = seed + i * 0x9e3779b97f4a7c15ull;
        out[i] = pack(limit * noise(x), limit * noise(x ^ 0x5851f42d4c957f2dull));
    }
}

__device__ static float leaky(float x)
{
    // sqrt(2 / (1 + 0.1 * 0.1))
    return 1.4071950f * fmaxf(x, 0.1f * x);
}

extern "C" __global__ void elementwise(const uint4 *x, const uint4 *y, uint4 *out, u64 groups, int inputs, u64 shift)
{
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += step) {
        uint4 a = x[i], b = make_uint4(0, 0, 0, 0);
        if (inputs == 2)
            b = y[i + shift < groups ? i + shift : i + shift - groups];
        float first = inputs == 2 ? -0.70710678f : 1.0f, second = inputs == 2 ? 0.70710678f : 0.0f;
        unsigned in[4] = {a.x, a.y, a.z, a.w}, other[4] = {b.x, b.y, b.z, b.w}, result[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float2 u = unpack(in[j]), v = unpack(other[j]);
            result[j] = pack(leaky(first * u.x + second * v.x), leaky(first * u.y + second * v.y));
        }
        out[i] = make_uint4(result[0], result[1], result[2], result[3]);
    }
}

// `row_length` is kernel * kernel * channels, rounded up to a multiple of eight. Eight values a thread.
extern "C" __global__ void im2col(const half_bits *in, uint4 *out, u64 rows, int height, int width, int channels,
                                  int kernel, int stride, int out_height, int out_width, int row_length)
{
    int groups = row_length / 8, taps = kernel * kernel * channels, pad = kernel / 2;
    u64 all = rows * groups, step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        u64 row = i / groups;
        int first = (int)(i % groups) * 8;
        int ox = (int)(row % out_width);
        int oy = (int)(row / out_width % out_height);
        u64 image = row / out_width / out_height;
        unsigned result[4] = {0, 0, 0, 0};
        if (channels % 8 == 0) {
            int tap = first / channels;
            int iy = oy * stride + tap / kernel - pad, ix = ox * stride + tap % kernel - pad;
            if (iy >= 0 && iy < height && ix >= 0 && ix < width) {
                uint4 v = *(const uint4 *)(in + ((image * height + iy) * width + ix) * channels + first % channels);
                result[0] = v.x, result[1] = v.y, result[2] = v.z, result[3] = v.w;
            }
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                int at = first + j, tap = at / channels;
                int iy = oy * stride + tap / kernel - pad, ix = ox * stride + tap % kernel - pad;
                if (at < taps && iy >= 0 && iy < height && ix >= 0 && ix < width)
                    result[j / 2] |= (unsigned)in[((image * height + iy) * width + ix) * channels + at % channels]
                                     << (16 * (j % 2));
            }
        }
        out[i] = make_uint4(result[0], result[1], result[2], result[3]);
    }
}

#define TILE 128
#define DEPTH 32
// Rows of a tile in shared memory lie so far apart that eight of them begin in different banks.
#define PITCH 40

__device__ static unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

// 128 rows of 32 values from column k0 on; zeros outside of the matrix.
__device__ static void fetch(half_bits *tile, const half_bits *from, int row0, int rows, int k0, int k)
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        int chunk = threadIdx.x + 256 * i, row = chunk / 4, column = chunk % 4 * 8;
        bool inside = row0 + row < rows && k0 + column < k;
        const half_bits *source = inside ? from + (u64)(row0 + row) * k + k0 + column : from;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(shared_address(tile + row * PITCH + column)), "l"(source), "r"(inside ? 16 : 0));
    }
}

__device__ static void four_matrices(unsigned *into, const half_bits *at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3]) : "r"(shared_address(at)));
}

extern "C" __global__ void __launch_bounds__(256) gemm(const half_bits *a, const half_bits *w, half_bits *c, int m,
                                                       int n, int k)
{
    __shared__ __align__(16) half_bits tile_a[2][TILE * PITCH], tile_w[2][TILE * PITCH];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row0 = blockIdx.x * TILE, column0 = blockIdx.y * TILE;
    int row_w = warp / 4 * 64, column_w = warp % 4 * 32;
    float sums[4][4][4] = {};

    fetch(tile_a[0], a, row0, m, 0, k);
    fetch(tile_w[0], w, column0, n, 0, k);
    asm volatile("cp.async.commit_group;");
    int steps = (k + DEPTH - 1) / DEPTH;
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) {
            fetch(tile_a[(step + 1) % 2], a, row0, m, (step + 1) * DEPTH, k);
            fetch(tile_w[(step + 1) % 2], w, column0, n, (step + 1) * DEPTH, k);
        }
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        const half_bits *now_a = tile_a[step % 2], *now_w = tile_w[step % 2];
#pragma unroll
        for (int deep = 0; deep < DEPTH; deep += 16) {
            unsigned left[4][4], right[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                four_matrices(left[i], now_a + (row_w + i * 16 + lane % 16) * PITCH + deep + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                four_matrices(right[j], now_w + (column_w + j * 16 + lane / 16 * 8 + lane % 8) * PITCH + deep
                                            + lane / 8 % 2 * 8);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                                 : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
                                 : "r"(left[i][0]), "r"(left[i][1]), "r"(left[i][2]), "r"(left[i][3]),
                                   "r"(right[j / 2][j % 2 * 2]), "r"(right[j / 2][j % 2 * 2 + 1]));
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
                int row = row0 + row_w + i * 16 + lower * 8 + lane / 4;
                int column = column0 + column_w + j * 8 + lane % 4 * 2;
                if (row < m && column < n)
                    *(unsigned *)(c + (u64)row * n + column) = pack(sums[i][j][lower * 2], sums[i][j][lower * 2 + 1]);
            }
}
