/* Reads the rows of a merged CSV in its plain form, which is nearly all there is; whatever is not in that form is left
 * to the reader of any CSV. Numbers are digits with at most one dot in between, so that a double is exact: digits below
 * 2^53 over a power of ten is the nearest one.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { TS, OPEN, HIGH, LOW, CLOSE, VOLUME, VIX, SYMBOL };
enum { DIGITS = 15, STAMP = 20, FIRST_YEAR = 1980, LAST_YEAR = 2100 };
/* What is seen on the way; what vpoc/data/compiled.py asks. */
enum { UNSOUND = 1, RANGE = 2 };

static const double POWERS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
static const double TICK = 0.25, OFF_GRID = 1e-6, MAX_TICKS = 2147483648.0;
static const int64_t MAX_VOLUME = 1000000000000;

typedef struct {
    int64_t *ts, *open, *high, *low, *close, *volume;
    double *vix;
    uint8_t *off_grid;
} Columns;

/* Where the digits that begin at `p` end; NULL when there are none, or too many. `places`: digits after the dot. */
static const char *decimal(const char *p, int64_t *digits, int *places) {
    const char *begin = p, *dot = NULL;
    int64_t value = 0;
    for (;; p++) {
        unsigned digit = (unsigned char)*p - '0';
        if (digit < 10) value = 10 * value + digit;
        else if (*p == '.' && !dot) dot = p;
        else break;
        if (p - begin > DIGITS) return NULL;
    }
    if (p == begin || dot == begin || dot == p - 1 || p - begin - (dot != NULL) > DIGITS) return NULL;
    *digits = value, *places = dot ? (int)(p - dot - 1) : 0;
    return p;
}

static int two(const char *p) {
    unsigned a = (unsigned char)p[0] - '0', b = (unsigned char)p[1] - '0';
    return a < 10 && b < 10 ? (int)(10 * a + b) : 100;
}

/* Days since 1970-01-01 of the date written in 10 characters; -1 unless it is one of those years. */
static int64_t date(const char *p) {
    static const int LENGTHS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int century = two(p), years = two(p + 2), month = two(p + 5), day = two(p + 8);
    if (century > 99 || years > 99 || month < 1 || month > 12 || day < 1 || p[4] != '-' || p[7] != '-') return -1;
    int64_t year = 100 * century + years;
    int leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (year < FIRST_YEAR || year > LAST_YEAR || day > LENGTHS[month - 1] + (month == 2 && leap)) return -1;
    int64_t before = year - 1, days = 365 * (year - 1970) + (before / 4 - before / 100 + before / 400) - 477;
    for (int m = 0; m < month - 1; m++) days += LENGTHS[m];
    return days + (month > 2 && leap) + day - 1;
}

int64_t count_lines(const char *text, int64_t size) {
    int64_t lines = 0;
    for (int64_t i = 0; i < size; i++) lines += text[i] == '\n';
    return lines;
}

/* Reads the `rows` lines of text..end, all of which end, into the rows from `at` on. `kinds`: what the `count` columns
 * are. `symbol` is what stands in the column of that name in every row.
 *
 * 0 when all is read; -1 when something is not plain. `seen`: UNSOUND when a row breaks a rule of vpoc/data/bars.py or
 * its stamp is not after that of the row before; RANGE when a high is above its low.
 */
int read_rows(const char *text, const char *end, int64_t rows, const int32_t *kinds, int32_t count, const char *symbol,
              int64_t symbol_size, const Columns *to, int64_t at, int32_t *seen) {
    const char *p = text, *day_text = NULL;
    int64_t day = 0, last = INT64_MIN, flags = 0;
    for (int64_t row = at; row < at + rows; row++) {
        int off_grid = 0;
        for (int32_t column = 0; column < count; column++) {
            int kind = kinds[column], places;
            int64_t digits;
            if (kind == TS) {
                if (end - p < STAMP || p[10] != 'T' || p[13] != ':' || p[16] != ':' || p[19] != 'Z') return -1;
                if (!day_text || memcmp(p, day_text, 10)) {
                    day = date(p), day_text = p;
                    if (day < 0) return -1;
                }
                int hour = two(p + 11), minute = two(p + 14), second = two(p + 17);
                if (hour > 23 || minute > 59 || second > 59) return -1;
                to->ts[row] = 86400 * day + 3600 * hour + 60 * minute + second;
                p += STAMP;
            } else if (kind == SYMBOL) {
                if (end - p < symbol_size || memcmp(p, symbol, symbol_size)) return -1;
                p += symbol_size;
            } else if (kind == VIX && (*p == ',' || *p == '\n')) {
                to->vix[row] = NAN;
            } else {
                p = decimal(p, &digits, &places);
                if (!p) return -1;
                if (kind == VOLUME) {
                    if (places || digits > MAX_VOLUME) return -1;
                    to->volume[row] = digits;
                } else if (kind == VIX) {
                    to->vix[row] = (double)digits / POWERS[places];
                    flags |= digits ? 0 : UNSOUND;
                } else {
                    double ticks = (double)digits / POWERS[places] / TICK, rounded = rint(ticks);
                    if (ticks > MAX_TICKS) return -1;
                    off_grid |= fabs(ticks - rounded) > OFF_GRID;
                    (&to->ts)[kind][row] = (int64_t)rounded;
                }
            }
            if (*p != (column == count - 1 ? '\n' : ',')) return -1;
            p++;
        }
        int64_t open = to->open[row], high = to->high[row], low = to->low[row], close = to->close[row];
        to->off_grid[row] = off_grid;
        int outside = (open > high) | (close > high) | (open < low) | (close < low);
        if (off_grid | outside | (low <= 0) | (to->ts[row] <= last)) flags |= UNSOUND;
        flags |= high == low ? 0 : RANGE;
        last = to->ts[row];
    }
    *seen = (int32_t)flags;
    return 0;
}
