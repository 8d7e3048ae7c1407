/* Naked levels: what vpoc/features/look_back.py computes with numpy, bar by bar. */
#include <stdint.h>

/* Of the `reach` levels of each session that are alive and in no range of its bars up to each bar: how many lie above
 * and below `price`, how far the nearest do, INT64_MAX without one, and the age of the nearest of all, 0 without.
 *
 * `low`, `high`, `price`: of the bars of all sessions, one after the other. `answer`: those five rows, `stride` apart.
 */
void naked_levels(int64_t sessions, const int64_t *size, const int64_t *low, const int64_t *high, const int64_t *price,
                  int64_t reach, const int64_t *level, const int64_t *age, const uint8_t *alive, int64_t *answer,
                  int64_t stride) {
    for (int64_t s = 0; s < sessions; s++, level += reach, age += reach, alive += reach) {
        for (int64_t i = 0; i < size[s]; i++, low++, high++, price++, answer++) {
            int64_t above = 0, below = 0, up = INT64_MAX, down = INT64_MAX, nearest = INT64_MAX, youngest = 0;
            for (int64_t k = 0; k < reach; k++) {
                int64_t distance = level[k] - *price;
                if (!alive[k] || !distance || (*low <= level[k] && level[k] <= *high)) continue;
                if (distance > 0) above++, up = distance < up ? distance : up;
                else below++, distance = -distance, down = distance < down ? distance : down;
                if (distance < nearest || (distance == nearest && age[k] < youngest)) {
                    nearest = distance, youngest = age[k];
                }
            }
            answer[0] = above, answer[stride] = below, answer[2 * stride] = up, answer[3 * stride] = down;
            answer[4 * stride] = youngest;
        }
    }
}
