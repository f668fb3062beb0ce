// The loop nests of an LSTM and a GRU (arXiv:1909.13654): time step > hidden unit > reductions over [x; h] of all its
// gates > non-linearity and cell update. A unit's gates live in registers; nothing of size hidden x gates is stored
// within a step.
//
// Lanes of a vector are hidden units. `packed` weights have the order [tile of units][k][gate][lane], so that a tile
// is one sequential stream and needs no horizontal sum. The rows of W_ih x for `tile` steps may be computed at once,
// which reads W_ih once for all of them, into a scratch of tile x batch x hidden x gates numbers; tile = 1 computes
// them within the step and stores nothing.
//
// Threads stay in one parallel region for all steps and meet at a barrier once a step. Each keeps its units, and
// walks through them forwards and backwards in turn, so that weights used last are used first while in the cache.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <sched.h>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

// One pass of one direction of one layer. The order of the fields is that of `kernels.LoopArguments`.
struct Pass {
  int64_t steps, batch, hidden, input;   // batch: the rows of the first step, which has most
  int64_t x_stride, y_stride, reverse;   // strides in numbers, from row to row
  int64_t threads, unit_tiles, unroll, tile, serpentine;
  int64_t keeps_cells;                   // whether `cells` has a row for each row of x, or one for each of the batch
  int64_t first, last;                   // `backward` computes the steps in [first, last), the last of them first
  const int64_t *batch_sizes, *offsets;  // rows of each step; where they begin, and their number at the end
  const void *x, *h0, *c0, *packed_x, *packed_h;
  const void *bias_x, *bias_h;           // of the gates, or null
  void *y, *cells, *scratch;
  const void *dy;                        // of the outputs, with y's stride
  void *dh, *dc;                         // of the state after the last step; then, of the state before the first
  void *dgates_x, *dgates_h, *partial;   // rows of (gate, unit); threads' sums of dh, 2 x threads x batch x hidden
};

namespace {

template <typename T> struct Types;
template <> struct Types<float> {
  typedef float V __attribute__((vector_size(VECTOR_BYTES)));
  typedef int32_t I __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int digits = 23, excess = 127, terms = 8;
  static constexpr float highest = 87.0f, round = 12582912.0f;
  static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860682030941723212e-6f;
};
template <> struct Types<double> {
  typedef double V __attribute__((vector_size(VECTOR_BYTES)));
  typedef int64_t I __attribute__((vector_size(VECTOR_BYTES)));
  static constexpr int digits = 52, excess = 1023, terms = 14;
  static constexpr double highest = 700.0, round = 6755399441055744.0;
  static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
};
template <typename T> using Vec = typename Types<T>::V;
template <typename T> constexpr int lanes() { return VECTOR_BYTES / sizeof(T); }
template <typename T> inline Vec<T> all(T value) { return value - Vec<T>{}; }

// exp(x) - 1, to rounding, also near 0: x = n ln 2 + r, a Taylor series in r, 2^n put into the exponent.
template <typename T> inline Vec<T> expm1(Vec<T> x) {
  typedef Types<T> P;
  typedef typename P::I I;
  x = x > P::highest ? all<T>(P::highest) : x;
  x = x < -P::highest ? all<T>(-P::highest) : x;
  const Vec<T> shifted = x * T(1.4426950408889634074) + P::round;
  const Vec<T> n = shifted - P::round;
  const Vec<T> r = (x - n * P::ln2_high) - n * P::ln2_low;
  Vec<T> series = all<T>(T(1) / P::terms);
  for (int i = P::terms - 1; i > 0; --i) series = series * r * (T(1) / i) + T(1) / i;
  series = series * r;  // r (1 + r/2 (1 + r/3 (...)))
  I bits;
  std::memcpy(&bits, &shifted, sizeof bits);  // the low bits of the mantissa are n, to which its own are added
  I power = (bits + P::excess) << P::digits;
  Vec<T> scale;
  std::memcpy(&scale, &power, sizeof scale);
  return scale * series + (scale - T(1));
}
template <typename T> inline Vec<T> sigmoid(Vec<T> x) { return T(1) / (T(2) + expm1<T>(-x)); }
template <typename T> inline Vec<T> tanh(Vec<T> x) {
  const Vec<T> e = expm1<T>(x + x);
  return e / (e + T(2));
}

template <typename T> inline Vec<T> load(const T *from, int count) {
  Vec<T> made{};
  if (count >= lanes<T>()) std::memcpy(&made, from, sizeof made);
  else for (int i = 0; i < count; ++i) made[i] = from[i];
  return made;
}
template <typename T> inline void store(T *to, Vec<T> value, int count) {
  if (count >= lanes<T>()) std::memcpy(to, &value, sizeof value);
  else for (int i = 0; i < count; ++i) to[i] = value[i];
}

// sums[tile][row][gate] += W k-th column of the tile's units * row[k], for all k: the hot loop.
template <typename T, int G, int TILES, int UNROLL, int ROWS>
inline void reduce(const T *packed, int64_t tile_size, const T *const *rows, int64_t length,
                   Vec<T> (*sums)[ROWS][G]) {
  const Vec<T> *w[TILES];
  Vec<T> made[UNROLL][TILES][ROWS][G];
  for (int i = 0; i < TILES; ++i) w[i] = (const Vec<T> *)(packed + i * tile_size);
  std::memset(made, 0, sizeof made);
  int64_t k = 0;
  for (; k + UNROLL <= length; k += UNROLL) {
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; ++u)
#pragma GCC unroll 4
      for (int b = 0; b < ROWS; ++b) {
        const Vec<T> value = all<T>(rows[b][k + u]);
#pragma GCC unroll 4
        for (int i = 0; i < TILES; ++i)
#pragma GCC unroll 4
          for (int g = 0; g < G; ++g) made[u][i][b][g] += w[i][(k + u) * G + g] * value;
      }
  }
  for (; k < length; ++k)
    for (int b = 0; b < ROWS; ++b)
      for (int i = 0; i < TILES; ++i)
        for (int g = 0; g < G; ++g) made[0][i][b][g] += w[i][k * G + g] * rows[b][k];
  for (int i = 0; i < TILES; ++i)
    for (int b = 0; b < ROWS; ++b)
      for (int g = 0; g < G; ++g) {
        Vec<T> sum = made[0][i][b][g];
        for (int u = 1; u < UNROLL; ++u) sum += made[u][i][b][g];
        sums[i][b][g] = sum;
      }
}

template <typename T> using Reduce = void (*)(const T *, int64_t, const T *const *, int64_t, Vec<T> *);

template <typename T, int G, int TILES, int UNROLL, int ROWS>
void reduce_plain(const T *packed, int64_t tile_size, const T *const *rows, int64_t length, Vec<T> *sums) {
  reduce<T, G, TILES, UNROLL, ROWS>(packed, tile_size, rows, length, (Vec<T>(*)[ROWS][G])sums);
}

// The reduction for these many tiles of units, unrolled reduction steps and rows (1, 2 or 4; 1 with two tiles).
template <typename T, int G> Reduce<T> choose(int64_t tiles, int64_t unroll, int rows) {
  if (rows == 4) return reduce_plain<T, G, 1, 1, 4>;
  if (rows == 2) return unroll >= 2 ? reduce_plain<T, G, 1, 2, 2> : reduce_plain<T, G, 1, 1, 2>;
  if (tiles == 2) return unroll >= 2 ? reduce_plain<T, G, 2, 2, 1> : reduce_plain<T, G, 2, 1, 1>;
  if (unroll >= 4) return reduce_plain<T, G, 1, 4, 1>;
  return unroll >= 2 ? reduce_plain<T, G, 1, 2, 1> : reduce_plain<T, G, 1, 1, 1>;
}

// Sums of the lanes of as many vectors as a vector has lanes, in their order.
template <typename T> inline Vec<T> lane_sums(Vec<T> *v) {
  constexpr int L = lanes<T>();
  typename Types<T>::I even, odd;
  for (int i = 0; i < L; ++i) even[i] = 2 * i, odd[i] = 2 * i + 1;
  for (int count = L; count > 1; count /= 2)
    for (int i = 0; i < count / 2; ++i)
      v[i] = __builtin_shuffle(v[2 * i], v[2 * i + 1], even) + __builtin_shuffle(v[2 * i], v[2 * i + 1], odd);
  return v[0];
}

// to[row][k] += sum over lanes and gates of W[k][gate] * d[row][gate]: the transposed product of one tile.
template <typename T, int G, int ROWS>
void spread(const T *packed, int64_t length, const Vec<T> (*d)[G], T *const *to) {
  constexpr int L = lanes<T>();
  const Vec<T> *w = (const Vec<T> *)packed;
  for (int64_t k = 0; k < length; k += L) {
    Vec<T> products[ROWS][L];
    const int count = length - k < L ? int(length - k) : L;
    for (int i = 0; i < L; ++i) {
      Vec<T> sums[ROWS];
      for (int b = 0; b < ROWS; ++b) sums[b] = Vec<T>{};
      if (i < count)
        for (int g = 0; g < G; ++g) {
          const Vec<T> weight = w[(k + i) * G + g];
          for (int b = 0; b < ROWS; ++b) sums[b] += weight * d[b][g];
        }
      for (int b = 0; b < ROWS; ++b) products[b][i] = sums[b];
    }
    for (int b = 0; b < ROWS; ++b) store<T>(to[b] + k, load<T>(to[b] + k, count) + lane_sums<T>(products[b]), count);
  }
}

// A barrier for threads of one region. It spins for some microseconds, then gives the processor away: on a machine
// with more threads than cores the one that is waited for may not be running.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    if (threads_ == 1) return;
    const int turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins) {
      if (spins < 1000) __asm__ volatile("" ::: "memory");
      else sched_yield();
#if defined(__x86_64__)
      if (spins < 1000) __builtin_ia32_pause();
#endif
    }
  }

 private:
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> turn_{0};
};

// LSTM: gates i, f, g, o. All four sum over x and h.
template <typename T> struct Lstm {
  static constexpr int gates = 4;
  // x, h: the gates' sums over x and over h, with their biases. out: the state and the cell.
  static void forward(const Vec<T> *x, const Vec<T> *h, Vec<T> before, Vec<T> cell, Vec<T> *out) {
    const Vec<T> i = sigmoid<T>(x[0] + h[0]), f = sigmoid<T>(x[1] + h[1]);
    const Vec<T> g = tanh<T>(x[2] + h[2]), o = sigmoid<T>(x[3] + h[3]);
    const Vec<T> c = f * cell + i * g;
    out[0] = o * tanh<T>(c);
    out[1] = c;
  }
  // out: the gates' gradients before their non-linearities, by x and by h alike; what goes to the cell before.
  static void backward(const Vec<T> *x, const Vec<T> *h, Vec<T> before, Vec<T> cell, Vec<T> dh,
                       Vec<T> dc, Vec<T> *by_x, Vec<T> *by_h, Vec<T> *direct) {
    const Vec<T> i = sigmoid<T>(x[0] + h[0]), f = sigmoid<T>(x[1] + h[1]);
    const Vec<T> g = tanh<T>(x[2] + h[2]), o = sigmoid<T>(x[3] + h[3]);
    const Vec<T> t = tanh<T>(f * cell + i * g);
    dc += dh * o * (T(1) - t * t);
    by_x[0] = by_h[0] = dc * g * i * (T(1) - i);
    by_x[1] = by_h[1] = dc * cell * f * (T(1) - f);
    by_x[2] = by_h[2] = dc * i * (T(1) - g * g);
    by_x[3] = by_h[3] = dh * t * o * (T(1) - o);
    direct[0] = Vec<T>{};
    direct[1] = dc * f;
  }
};

// GRU: gates r, z, n. The reset gate is applied to n's sum over h with its bias, as torch does.
template <typename T> struct Gru {
  static constexpr int gates = 3;
  static void forward(const Vec<T> *x, const Vec<T> *h, Vec<T> before, Vec<T>, Vec<T> *out) {
    const Vec<T> r = sigmoid<T>(x[0] + h[0]), z = sigmoid<T>(x[1] + h[1]);
    const Vec<T> n = tanh<T>(x[2] + r * h[2]);
    out[0] = n + z * (before - n);
    out[1] = Vec<T>{};
  }
  static void backward(const Vec<T> *x, const Vec<T> *h, Vec<T> before, Vec<T>, Vec<T> dh,
                       Vec<T>, Vec<T> *by_x, Vec<T> *by_h, Vec<T> *direct) {
    const Vec<T> r = sigmoid<T>(x[0] + h[0]), z = sigmoid<T>(x[1] + h[1]);
    const Vec<T> n = tanh<T>(x[2] + r * h[2]);
    by_x[2] = dh * (T(1) - z) * (T(1) - n * n);
    by_x[1] = by_h[1] = dh * (before - n) * z * (T(1) - z);
    by_x[0] = by_h[0] = by_x[2] * h[2] * r * (T(1) - r);
    by_h[2] = by_x[2] * r;
    direct[0] = dh * z;
    direct[1] = Vec<T>{};
  }
};

// What one thread does of a pass: units of the tiles in [begin_, end_).
//
// Steps are counted in the order in which they are computed; `time` is a step's place in the sequence. A row's state
// before a step is its row of y, or of h0 where its sequence begins.
template <typename T, template <typename> class Cell> class Worker {
  static constexpr int G = Cell<T>::gates, L = lanes<T>();
  typedef Vec<T> V;

 public:
  Worker(const Pass &pass, int thread, int threads, Barrier &barrier)
      : p_(pass), thread_(thread), threads_(threads), barrier_(barrier), tiles_((pass.hidden + L - 1) / L) {
    begin_ = tiles_ * thread / threads;
    end_ = tiles_ * (thread + 1) / threads;
  }

  void forward() {
    for (int64_t from = 0; from < p_.steps; from += p_.tile) {
      const int64_t to = from + p_.tile < p_.steps ? from + p_.tile : p_.steps;
      if (p_.tile > 1) inputs(from, to);
      for (int64_t s = from; s < to; ++s) {
        step(s, from);
        barrier_.wait();
      }
    }
  }

  void backward() {
    if (p_.tile > 1) inputs(p_.first, p_.last);
    for (int64_t s = p_.last - 1; s >= p_.first; --s) step_back(s);
  }

 private:
  struct Sums { V x[4 * G], h[4 * G]; };

  int64_t time(int64_t s) const { return p_.reverse ? p_.steps - 1 - s : s; }
  int64_t size(int64_t s) const { return p_.batch_sizes[time(s)]; }
  int64_t row(int64_t s, int64_t b) const { return p_.offsets[time(s)] + b; }
  const T *x_row(int64_t s, int64_t b) const { return (const T *)p_.x + row(s, b) * p_.x_stride; }
  bool begins(int64_t s, int64_t b) const { return s == 0 || b >= size(s - 1); }
  const T *state_before(int64_t s, int64_t b) const {
    return begins(s, b) ? (const T *)p_.h0 + b * p_.hidden : (const T *)p_.y + row(s - 1, b) * p_.y_stride;
  }
  const T *cell_before(int64_t s, int64_t b) const {
    if (!p_.keeps_cells) return (const T *)p_.cells + b * p_.hidden;  // c0 at first
    return begins(s, b) ? (const T *)p_.c0 + b * p_.hidden : (const T *)p_.cells + row(s - 1, b) * p_.hidden;
  }
  T *cell_after(int64_t s, int64_t b) const { return (T *)p_.cells + (p_.keeps_cells ? row(s, b) : b) * p_.hidden; }
  // Rows of the steps [from, s).
  int64_t rows_between(int64_t from, int64_t s) const {
    return p_.reverse ? p_.offsets[time(from) + 1] - p_.offsets[time(s) + 1] : p_.offsets[s] - p_.offsets[from];
  }
  T *scratch(int64_t place, int64_t tile) const { return (T *)p_.scratch + (place * tiles_ + tile) * G * L; }
  int units(int64_t tile) const { return p_.hidden - tile * L < L ? int(p_.hidden - tile * L) : L; }
  const T *weights(const void *packed, int64_t tile, int64_t length) const {
    return (const T *)packed + tile * length * G * L;
  }
  V bias(const void *of_gates, int64_t tile, int gate) const {
    return of_gates ? load<T>((const T *)of_gates + gate * p_.hidden + tile * L, units(tile)) : V{};
  }
  static int at_once(int64_t left) { return left >= 4 ? 4 : left >= 2 ? 2 : 1; }

  // Groups of the thread's tiles that are computed at once.
  template <typename F> void for_tiles(int64_t width, bool backwards, F work) const {
    const int64_t count = end_ - begin_, groups = (count + width - 1) / width;
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t at = (backwards ? groups - 1 - i : i) * width;
      work(begin_ + at, at + width <= count ? width : count - at);
    }
  }

  // W_ih x for the rows of steps [from, to), into the scratch, in which rows are counted from the first step's.
  // Rows of several steps are reduced at once, so that weights are read once for four of them in a single sequence.
  void inputs(int64_t from, int64_t to) const {
    for_tiles(1, false, [&](int64_t tile, int64_t) {
      int64_t s = from, b = 0;
      const int64_t total = rows_between(from, to - 1) + size(to - 1);
      for (int64_t place = 0; place < total;) {
        const int now = at_once(total - place);
        const T *rows[4];
        for (int r = 0; r < now; ++r) {
          rows[r] = x_row(s, b);
          if (++b == size(s)) b = 0, ++s;
        }
        V sums[4 * G];
        choose<T, G>(1, p_.unroll, now)(weights(p_.packed_x, tile, p_.input), 0, rows, p_.input, sums);
        for (int r = 0; r < now; ++r) std::memcpy(scratch(place + r, tile), sums + r * G, G * sizeof(V));
        place += now;
      }
    });
  }

  // The gates' sums over x and over h, with biases, for `now` rows from b on, or for `width` tiles of one row.
  void sum(int64_t s, int64_t from, int64_t tile, int64_t width, int64_t b, int now, Sums &sums) const {
    const T *rows[4];
    for (int r = 0; r < now; ++r) rows[r] = state_before(s, b + r);
    const auto reduction = choose<T, G>(width, p_.unroll, now);
    reduction(weights(p_.packed_h, tile, p_.hidden), p_.hidden * G * L, rows, p_.hidden, sums.h);
    if (p_.tile > 1) {
      const int64_t place = rows_between(from, s) + b;
      for (int i = 0; i < width; ++i)
        for (int r = 0; r < now; ++r)
          std::memcpy(sums.x + (i * now + r) * G, scratch(place + r, tile + i), G * sizeof(V));
    } else {
      for (int r = 0; r < now; ++r) rows[r] = x_row(s, b + r);
      reduction(weights(p_.packed_x, tile, p_.input), p_.input * G * L, rows, p_.input, sums.x);
    }
    for (int i = 0; i < width; ++i)
      for (int r = 0; r < now; ++r)
        for (int g = 0; g < G; ++g) {
          sums.x[(i * now + r) * G + g] += bias(p_.bias_x, tile + i, g);
          sums.h[(i * now + r) * G + g] += bias(p_.bias_h, tile + i, g);
        }
  }

  void step(int64_t s, int64_t from) const {
    const int64_t rows = size(s);
    for_tiles(rows == 1 ? p_.unit_tiles : 1, p_.serpentine && s % 2, [&](int64_t tile, int64_t width) {
      for (int64_t b = 0; b < rows;) {
        const int now = at_once(rows - b);
        Sums sums;
        sum(s, from, tile, width, b, now, sums);
        for (int i = 0; i < width; ++i)
          for (int r = 0; r < now; ++r) update(s, tile + i, b + r, (i * now + r) * G, sums);
        b += now;
      }
    });
  }

  void update(int64_t s, int64_t tile, int64_t b, int at, const Sums &sums) const {
    const int64_t unit = tile * L;
    const int count = units(tile);
    const V before = load<T>(state_before(s, b) + unit, count);
    V cell{}, made[2];
    if (p_.cells) cell = load<T>(cell_before(s, b) + unit, count);
    Cell<T>::forward(sums.x + at, sums.h + at, before, cell, made);
    store<T>((T *)p_.y + row(s, b) * p_.y_stride + unit, made[0], count);
    if (p_.cells) store<T>(cell_after(s, b) + unit, made[1], count);
  }

  // The gates are computed again, from x, h and c. Their weights are then in the cache for the transposed product.
  void step_back(int64_t s) const {
    const int64_t rows = size(s), width = p_.hidden;
    T *partial = (T *)p_.partial + s % 2 * threads_ * p_.batch * width;
    T *mine = partial + thread_ * p_.batch * width;
    std::memset(mine, 0, rows * width * sizeof(T));
    for_tiles(1, p_.serpentine && s % 2, [&](int64_t tile, int64_t) {
      for (int64_t b = 0; b < rows;) {
        const int now = at_once(rows - b);
        Sums sums;
        sum(s, p_.first, tile, 1, b, now, sums);
        V by_h[4][G];
        T *to[4];
        for (int r = 0; r < now; ++r) {
          update_back(s, tile, b + r, r * G, sums, by_h[r]);
          to[r] = mine + (b + r) * width;
        }
        const T *w = weights(p_.packed_h, tile, width);
        if (now == 4) spread<T, G, 4>(w, width, by_h, to);
        else if (now == 2) spread<T, G, 2>(w, width, by_h, to);
        else spread<T, G, 1>(w, width, by_h, to);
        b += now;
      }
    });
    barrier_.wait();
    const int64_t first = begin_ * L, last = end_ * L < width ? end_ * L : width;
    for (int other = 0; other < threads_; ++other)
      for (int64_t b = 0; b < rows; ++b) {
        T *dh = (T *)p_.dh + b * width;
        const T *from = partial + (other * p_.batch + b) * width;
        for (int64_t unit = first; unit < last; ++unit) dh[unit] += from[unit];
      }
  }

  void update_back(int64_t s, int64_t tile, int64_t b, int at, const Sums &sums, V *by_h) const {
    const int64_t unit = tile * L, place = row(s, b) - p_.offsets[p_.reverse ? time(p_.last - 1) : p_.first];
    const int count = units(tile);
    T *dh = (T *)p_.dh + b * p_.hidden + unit, *dc = (T *)p_.dc + b * p_.hidden + unit;
    const V before = load<T>(state_before(s, b) + unit, count);
    const V by_y = load<T>((const T *)p_.dy + row(s, b) * p_.y_stride + unit, count);
    V cell{}, by_cell{}, by_x[G], direct[2];
    if (p_.cells) cell = load<T>(cell_before(s, b) + unit, count), by_cell = load<T>(dc, count);
    Cell<T>::backward(sums.x + at, sums.h + at, before, cell, load<T>(dh, count) + by_y, by_cell, by_x,
                      by_h, direct);
    store<T>(dh, direct[0], count);
    if (p_.cells) store<T>(dc, direct[1], count);
    for (int g = 0; g < G; ++g) {
      const int64_t column = (place * G + g) * p_.hidden + unit;
      store<T>((T *)p_.dgates_x + column, by_x[g], count);
      if (p_.dgates_h != p_.dgates_x) store<T>((T *)p_.dgates_h + column, by_h[g], count);
    }
  }

  const Pass &p_;
  const int thread_, threads_;
  Barrier &barrier_;
  const int64_t tiles_;
  int64_t begin_, end_;
};

template <typename T, template <typename> class Cell> void run(const Pass &pass, bool back) {
  const int64_t tiles = (pass.hidden + lanes<T>() - 1) / lanes<T>();
  const int threads = int(pass.threads < tiles ? pass.threads : tiles);
  Barrier barrier(threads);
  auto work = [&](int thread) {
    Worker<T, Cell> worker(pass, thread, threads, barrier);
    back ? worker.backward() : worker.forward();
  };
  if (threads == 1) return work(0);  // no region: a forked child of a process that had one may not begin another
  bool complete = false;
#pragma omp parallel num_threads(threads)
  {
    // The barrier counts on all of them, and OpenMP may give fewer, within another region for instance.
    if (omp_get_num_threads() == threads) {
      work(omp_get_thread_num());
      if (omp_get_thread_num() == 0) complete = true;
    }
  }
  if (complete) return;
  Barrier alone(1);
  Worker<T, Cell> worker(pass, 0, 1, alone);
  back ? worker.backward() : worker.forward();
}

// A vector for each of L rows, turned into one for each of L columns.
template <typename T> void transpose(Vec<T> *v) {
  constexpr int L = lanes<T>();
  typename Types<T>::I low, high;
  for (int i = 0; i < L; ++i) low[i] = i / 2 + i % 2 * L, high[i] = low[i] + L / 2;
  Vec<T> made[L];
  for (int turns = L; turns > 1; turns /= 2) {
    for (int i = 0; i < L / 2; ++i) {
      made[2 * i] = __builtin_shuffle(v[i], v[i + L / 2], low);
      made[2 * i + 1] = __builtin_shuffle(v[i], v[i + L / 2], high);
    }
    std::memcpy(v, made, sizeof made);
  }
}

template <typename T>
void pack(const T *weights, T *packed, int64_t gates, int64_t hidden, int64_t length, int64_t threads) {
  constexpr int L = lanes<T>();
  const int64_t tiles = (hidden + L - 1) / L;
  auto one = [&](int64_t tile) {
    const int units = hidden - tile * L < L ? int(hidden - tile * L) : L;
    // A gate's rows at a time: with those of all gates, more pages are read at once than addresses are remembered.
    for (int64_t g = 0; g < gates; ++g) {
      const T *rows = weights + (g * hidden + tile * L) * length;
      for (int64_t k = 0; k < length; k += L) {
        const int count = length - k < L ? int(length - k) : L;
        Vec<T> v[L];
        for (int i = 0; i < L; ++i) v[i] = i < units ? load<T>(rows + i * length + k, count) : Vec<T>{};
        transpose<T>(v);
        for (int i = 0; i < count; ++i)
          std::memcpy(packed + ((tile * length + k + i) * gates + g) * L, v + i, sizeof v[i]);
      }
    }
  };
  if (threads == 1) {
    for (int64_t tile = 0; tile < tiles; ++tile) one(tile);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t tile = 0; tile < tiles; ++tile) one(tile);
}

// Whether some of the weights, from all parts of them, are what was packed.
template <typename T>
int resembles(const T *weights, const T *packed, int64_t gates, int64_t hidden, int64_t length, int64_t samples) {
  constexpr int L = lanes<T>();
  const int64_t total = gates * hidden * length;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t at = total * i / samples, k = at % length, g = at / length / hidden, unit = at / length % hidden;
    const T *copy = packed + ((unit / L * length + k) * gates + g) * L + unit % L;
    if (std::memcmp(weights + at, copy, sizeof(T))) return 0;
  }
  return 1;
}

}  // namespace

extern "C" {

int64_t oakum_vector_bytes() { return VECTOR_BYTES; }
int64_t oakum_pass_bytes() { return sizeof(Pass); }

void oakum_run(const Pass *pass, int is_lstm, int is_double, int back) {
  if (is_double) is_lstm ? run<double, Lstm>(*pass, back) : run<double, Gru>(*pass, back);
  else is_lstm ? run<float, Lstm>(*pass, back) : run<float, Gru>(*pass, back);
}

void oakum_pack(const void *weights, void *packed, int64_t gates, int64_t hidden, int64_t length, int64_t threads,
                int is_double) {
  if (is_double) pack<double>((const double *)weights, (double *)packed, gates, hidden, length, threads);
  else pack<float>((const float *)weights, (float *)packed, gates, hidden, length, threads);
}

int oakum_resembles(const void *weights, const void *packed, int64_t gates, int64_t hidden, int64_t length,
                    int64_t samples, int is_double) {
  if (is_double) return resembles<double>((const double *)weights, (const double *)packed, gates, hidden, length, samples);
  return resembles<float>((const float *)weights, (const float *)packed, gates, hidden, length, samples);
}
}
