/* Volume profiles, developing bar by bar: what vpoc/profile computes with numpy, in the same integers.
 *
 * Prices are ticks, volumes contracts. A profile is an array of columns, one for each tick of the session's range, with
 * PADDING columns of zeros on each side.
 */
#include <stdint.h>
#include <stdlib.h>

enum { PADDING = 4, UNIFORM = 0, CLOSE = 1, TYPICAL = 2, BRACKET_SECONDS = 1800 };
/* The rows of the answer, in the order of vpoc/profile/kernel_profiles.py. */
enum { LOW, HIGH, VPOC, AT_VPOC, VAH, VAL, AREA, VOLUME, MOVED, LOWER, UPPER, HVN, LVN, TPOC, SINGLE, TAIL_HI, TAIL_LO,
       POOR_HI, POOR_LO, SIGNED, SIGNED_AT, VOLUME_AT };

typedef struct {
    int64_t width, first, last, vpoc, peak, tied, total, top, stale;
    int64_t *volume, *smooth, *tpo, *seen;
    double *logs;
} Profile;

typedef struct { int64_t low, high, share, run, left; } Spread;

typedef struct {
    const int64_t *ts, *open, *high, *low, *close, *volume;
} Bars;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Where the volume of a bar goes; 0 when that, or its range, is outside the columns. */
static int spread(const Bars *bars, int64_t i, int64_t base, int64_t width, int64_t placement, Spread *to) {
    int64_t low = bars->low[i] - base, high = bars->high[i] - base, close = bars->close[i] - base;
    int64_t volume = bars->volume[i];
    if (low < 0 || low > high || high >= width) return 0;
    if (placement != UNIFORM) {
        int64_t price = placement == TYPICAL ? (2 * (low + high + close + 3 * base) + 3) / 6 - base : close;
        *to = (Spread){price, price, volume, price, 0};
        return 0 <= price && price < width;
    }
    int64_t ticks = high - low + 1, share, left;
    if ((uint64_t)volume >> 32 | (uint64_t)ticks >> 32) {
        share = volume / ticks, left = volume % ticks;
    } else {
        share = (uint32_t)volume / (uint32_t)ticks, left = (uint32_t)volume % (uint32_t)ticks;
    }
    int64_t run = least(most(close - left / 2, low), high - left + 1);
    *to = (Spread){low, high, share, run, left};
    return 1;
}

/* The column in first..last of the largest value; on a tie the one nearest half of `ends`, then the lower. */
static int64_t largest(const int64_t *values, int64_t first, int64_t last, int64_t ends, int64_t *peak, int64_t *tied) {
    int64_t high = values[first], count = 0, found = first, nearest = INT64_MAX;
    for (int64_t k = first; k <= last; k++) high = most(high, values[k]);
    for (int64_t k = first; k <= last; k++) {
        if (values[k] != high) continue;
        int64_t distance = llabs(2 * k - ends);
        if (distance < nearest) found = k, nearest = distance;
        count++;
    }
    *peak = high, *tied = count > 1;
    return found;
}

static void add(Profile *p, Spread bar) {
    for (int64_t k = bar.low; k <= bar.high; k++) p->volume[k] += bar.share;
    for (int64_t k = bar.run; k < bar.run + bar.left; k++) p->volume[k]++;
    p->total += bar.share * (bar.high - bar.low + 1) + bar.left;
    int64_t high = p->volume[bar.low];
    for (int64_t k = bar.low + 1; k <= bar.high; k++) high = most(high, p->volume[k]);
    if (high > p->peak) {
        /* Only what the bar touched has grown. */
        p->vpoc = largest(p->volume, bar.low, bar.high, p->first + p->last, &p->peak, &p->tied);
    } else if (high == p->peak || p->tied) {
        p->vpoc = largest(p->volume, p->first, p->last, p->first + p->last, &p->peak, &p->tied);
    }
}

/* Weights 1 2 3 4 5 4 3 2 1, for the columns that a change of begin..end reaches. Volumes grow: so does the top. */
static void smooth(Profile *p, int64_t begin, int64_t end) {
    const int64_t *v = p->volume;
    int64_t top = p->top;
    begin = most(begin - PADDING, 0), end = least(end + PADDING, p->width - 1);
    for (int64_t k = begin; k <= end; k++) {
        int64_t sum = 5 * v[k] + 4 * (v[k - 1] + v[k + 1]) + 3 * (v[k - 2] + v[k + 2]) + 2 * (v[k - 3] + v[k + 3])
                      + v[k - 4] + v[k + 4];
        p->smooth[k] = sum;
        top = most(top, sum);
    }
    p->top = top;
}

static void value_area(const Profile *p, int64_t step, int64_t *answer, int64_t stride) {
    const int64_t *v = p->volume;
    int64_t target = 7 * (p->total / 10) + (7 * (p->total % 10) + 9) / 10;
    int64_t held = p->peak, above = p->vpoc + 1, below = p->vpoc - step, second = step - 1;
    while (held < target) {
        int64_t up = above > p->last ? -1 : v[above] + (second ? v[above + 1] : 0);
        int64_t down = below + second < p->first ? -1 : v[below] + (second ? v[below + 1] : 0);
        int64_t higher = up >= down;
        held += higher ? up : down;
        above += higher ? step : 0;
        below -= higher ? 0 : step;
    }
    answer[VAL * stride] = most(below + step, p->first);
    answer[VAH * stride] = least(above - 1, p->last);
    answer[AREA * stride] = held;
}

/* Peaks of the smoothed profile of half its top at least, and valleys of a quarter at most between two of them. */
static void nodes(const Profile *p, int64_t *answer, int64_t stride) {
    const int64_t *s = p->smooth;
    int64_t high = 0, low = 0, waiting = 0, rising = 1, half = p->top - p->top / 2, quarter = p->top / 4;
    if (p->top > 0) {
        for (int64_t k = p->first; k <= p->last; k++) {
            int64_t up = k < p->last && s[k + 1] > s[k], down = k == p->last || s[k + 1] < s[k];
            if (rising && down) {
                if (s[k] >= half) high++, low += high > 1 ? waiting : 0, waiting = 0;
                rising = 0;
            } else if (!rising && up) {
                waiting += s[k] <= quarter;
                rising = 1;
            }
        }
    }
    answer[HVN * stride] = high, answer[LVN * stride] = low;
}

static void time_at_price(const Profile *p, int64_t *answer, int64_t stride) {
    const int64_t *tpo = p->tpo;
    int64_t first = p->first, last = p->last, ignored, single = 0, waiting = 0, some = 0, bottom = -1, top = -1;
    for (int64_t k = first; k <= last; k++) {
        if (tpo[k] >= 2) single += some ? waiting : 0, waiting = 0, some = 1;
        else waiting += tpo[k] == 1;
        if (tpo[k] != 1) top = k, bottom = bottom < 0 ? k : bottom;
    }
    answer[TPOC * stride] = largest(tpo, first, last, first + last, &ignored, &ignored);
    answer[SINGLE * stride] = single;
    answer[TAIL_HI * stride] = top < 0 ? last - first + 1 : last - top;
    answer[TAIL_LO * stride] = top < 0 ? last - first + 1 : bottom - first;
    answer[POOR_HI * stride] = tpo[last] >= 2, answer[POOR_LO * stride] = tpo[first] >= 2;
}

static int64_t sum(const int64_t *values, int64_t begin, int64_t end) {
    int64_t total = 0;
    for (int64_t k = begin; k < end; k++) total += values[k];
    return total;
}

static void describe(Profile *p, int64_t step, int timed, int64_t *answer, int64_t stride) {
    int64_t third = (2 * (p->last - p->first + 1) + 3) / 6;
    answer[LOW * stride] = p->first, answer[HIGH * stride] = p->last;
    answer[VPOC * stride] = p->vpoc, answer[AT_VPOC * stride] = p->peak, answer[VOLUME * stride] = p->total;
    answer[LOWER * stride] = sum(p->volume, p->first, p->first + third);
    answer[UPPER * stride] = sum(p->volume, p->last + 1 - third, p->last + 1);
    value_area(p, step, answer, stride);
    if (!timed) return;
    nodes(p, answer, stride);
    if (p->stale) {
        time_at_price(p, answer, stride);
    } else {
        for (int64_t row = TPOC; row <= POOR_LO; row++) answer[row * stride] = answer[row * stride - 1];
    }
    p->stale = 0;
}

/* Adds in the order of numpy, whose sums of floats are in pairs, so that the last bit is the same. */
static double pairwise(const double *x, int64_t n) {
    if (n < 8) {
        double total = 0;
        for (int64_t i = 0; i < n; i++) total += x[i];
        return total;
    }
    if (n > 128) {
        int64_t half = n / 2 - n / 2 % 8;
        return pairwise(x, half) + pairwise(x + half, n - half);
    }
    double r[8];
    int64_t i = 8;
    for (int j = 0; j < 8; j++) r[j] = x[j];
    for (; i < n - n % 8; i += 8)
        for (int j = 0; j < 8; j++) r[j] += x[i + j];
    double total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++) total += x[i];
    return total;
}

/* Volume of a bar with the sign of its direction. */
static int64_t signed_volume(const Bars *bars, int64_t i) {
    return bars->close[i] > bars->open[i] ? bars->volume[i] : bars->close[i] < bars->open[i] ? -bars->volume[i] : 0;
}

/* Adds the volume of the bars whose range holds `price`, and that with its direction. */
static void flow_at(const Bars *bars, int64_t begin, int64_t end, int64_t price, int64_t *answer, int64_t stride) {
    int64_t volume = 0, directed = 0;
    for (int64_t i = begin; i < end; i++) {
        int64_t holds = bars->low[i] <= price && price <= bars->high[i];
        volume += holds ? bars->volume[i] : 0, directed += holds ? signed_volume(bars, i) : 0;
    }
    answer[VOLUME_AT * stride] += volume, answer[SIGNED_AT * stride] += directed;
}

/* The whole profile of a session at once; first differences take a bar in four steps, however wide it is. Those of the
 * contracts left over stand where the smoothed profile would. */
static int fill(Profile *p, const Bars *bars, int64_t begin, int64_t end, int64_t base, int64_t placement) {
    int64_t volume = 0, extra = 0;
    for (int64_t i = begin; i < end; i++) {
        Spread bar;
        if (!spread(bars, i, base, p->width, placement, &bar)) return 0;
        p->first = least(p->first, bars->low[i] - base), p->last = most(p->last, bars->high[i] - base);
        p->volume[bar.low] += bar.share, p->volume[bar.high + 1] -= bar.share;
        p->smooth[bar.run]++, p->smooth[bar.run + bar.left]--;
    }
    for (int64_t k = 0; k <= p->width; k++) {
        volume += p->volume[k], extra += p->smooth[k];
        p->volume[k] = volume + extra;
        p->total += volume + extra;
    }
    p->vpoc = largest(p->volume, p->first, p->last, p->first + p->last, &p->peak, &p->tied);
    return 1;
}

/* The volume of every column of the range of each bar once the bar is in it, 1 where it is 0. As `profiles`: 0, or -1
 * without memory or with a price outside the columns. */
int profile_cells(const Bars *bars, int64_t sessions, const int64_t *start, const int64_t *size, const int64_t *open,
                  const int64_t *base, const int64_t *width, int64_t placement, double *cells) {
    (void)open;
    for (int64_t s = 0; s < sessions; s++) {
        int64_t *volume = calloc(width[s], sizeof *volume);
        if (!volume) return -1;
        for (int64_t i = start[s]; i < start[s] + size[s]; i++) {
            Spread bar;
            if (!spread(bars, i, base[s], width[s], placement, &bar)) return free(volume), -1;
            for (int64_t k = bar.low; k <= bar.high; k++) {
                volume[k] += bar.share + (k >= bar.run && k < bar.run + bar.left);
                *cells++ = (double)most(volume[k], 1);
            }
        }
        free(volume);
    }
    return 0;
}

/* Facts of the profiles of `sessions`, whose bars are start..start+size-1 and begin at `open` or later.
 *
 * With `cells`, those of `profile_cells` each times its logarithm, one profile for each bar, and the sum of volume
 * times logarithm in `logs`; otherwise one for each session, with its volumes in `histogram`, if given, `widest` apart.
 * Without stamps only the levels of each session. `answer`: a row for each fact, `stride` apart; columns count from
 * `base`.
 */
int profiles(const Bars *bars, int64_t sessions, const int64_t *start, const int64_t *size, const int64_t *open,
             const int64_t *base, const int64_t *width, int64_t placement, int64_t step, const double *cells,
             double *logs, int64_t *histogram, int64_t widest, int64_t *answer, int64_t stride) {
    for (int64_t s = 0; s < sessions; s++) {
        int64_t columns = width[s] + 2 * PADDING, begin = start[s], end = begin + size[s], moved = begin, directed = 0;
        int64_t *room = calloc(5 * columns, sizeof *room);
        if (!room) return -1;
        Profile p = {.width = width[s], .volume = room + PADDING, .smooth = room + columns + PADDING,
                     .tpo = room + 2 * columns + PADDING,
                     .seen = room + 3 * columns + PADDING, .logs = (double *)(room + 4 * columns) + PADDING,
                     .first = bars->low[begin] - base[s], .last = bars->high[begin] - base[s], .tied = 1, .vpoc = -1};
        if (!bars->ts) {
            if (!fill(&p, bars, begin, end, base[s], placement)) return free(room), -1;
            describe(&p, step, 0, answer++, stride);
        }
        for (int64_t i = bars->ts ? begin : end; i < end; i++) {
            int64_t low = bars->low[i] - base[s], high = bars->high[i] - base[s], vpoc = p.vpoc;
            Spread bar;
            if (!spread(bars, i, base[s], width[s], placement, &bar)) return free(room), -1;
            p.first = least(p.first, low), p.last = most(p.last, high);
            add(&p, bar);
            moved = p.vpoc == vpoc ? moved : i;
            int64_t bracket = (bars->ts[i] - open[s]) / BRACKET_SECONDS + 1;
            for (int64_t k = low; k <= high; k++) {
                int64_t fresh = p.seen[k] != bracket;
                p.tpo[k] += fresh, p.stale |= fresh, p.seen[k] = bracket;
            }
            directed += signed_volume(bars, i);
            if (!cells && i < end - 1) continue;
            if (cells) {
                smooth(&p, bar.low, bar.high);
                for (int64_t k = bar.low; k <= bar.high; k++) p.logs[k] = *cells++;
                *logs++ = p.logs[p.first] + pairwise(p.logs + p.first + 1, p.last - p.first);
            } else {
                smooth(&p, p.first, p.last);
            }
            describe(&p, step, 1, answer, stride);
            int known = cells && p.vpoc == vpoc;
            answer[MOVED * stride] = moved - begin;
            answer[SIGNED * stride] = directed;
            answer[SIGNED_AT * stride] = known ? answer[SIGNED_AT * stride - 1] : 0;
            answer[VOLUME_AT * stride] = known ? answer[VOLUME_AT * stride - 1] : 0;
            flow_at(bars, known ? i : begin, i + 1, base[s] + p.vpoc, answer, stride);
            answer++;
        }
        if (histogram)
            for (int64_t k = 0; k < width[s]; k++) histogram[s * widest + k] = p.volume[k];
        free(room);
    }
    return 0;
}
