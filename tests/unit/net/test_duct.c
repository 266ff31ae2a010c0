#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "net/duct.h"

enum { AREA = 64 << 10 };

/* Two ends in one process, over two segments. */
struct scene {
    struct duct left, right;
    struct duct_head *left_memory, *right_memory;
};

static void scene_open(struct scene *scene)
{
    scene->left_memory = aligned_alloc(DUCT_ALIGN, duct_segment_bytes(AREA));
    scene->right_memory = aligned_alloc(DUCT_ALIGN, duct_segment_bytes(AREA));
    memset(scene->left_memory, 0, duct_segment_bytes(AREA));
    memset(scene->right_memory, 0, duct_segment_bytes(AREA));
    duct_init(&scene->left, scene->left_memory, AREA, scene->right_memory, AREA);
    duct_init(&scene->right, scene->right_memory, AREA, scene->left_memory, AREA);
}

static void scene_close(struct scene *scene)
{
    free(scene->left_memory);
    free(scene->right_memory);
}

static int put(struct duct *duct, const void *data, size_t bytes)
{
    struct message_part parts[2] = {{"envelope", 8}, {data, bytes}};
    return duct_write(duct, parts, 2);
}

static void a_message_is_read_where_it_was_written(void **state)
{
    (void)state;
    struct scene scene;
    struct duct_message message;
    uint8_t frame[3000];
    memset(frame, 7, sizeof frame);
    scene_open(&scene);
    assert_int_equal(duct_read(&scene.right, &message), STATUS_BUSY);
    assert_int_equal(put(&scene.left, frame, sizeof frame), STATUS_OK);
    assert_true(duct_has_message(&scene.right));
    assert_int_equal(duct_read(&scene.right, &message), STATUS_OK);
    assert_int_equal(message.count, 2);
    assert_memory_equal(message.parts[0].data, "envelope", 8);
    assert_int_equal(message.parts[1].bytes, sizeof frame);
    assert_memory_equal(message.parts[1].data, frame, sizeof frame);
    assert_int_equal((uintptr_t)message.parts[1].data % DUCT_ALIGN, 0);
    const uint8_t *area = (const uint8_t *)(scene.left_memory + 1);
    assert_true((const uint8_t *)message.parts[1].data > area && (const uint8_t *)message.parts[1].data < area + AREA);
    assert_int_equal(duct_read(&scene.right, &message), STATUS_BUSY);
    scene_close(&scene);
}

static void empty_parts_and_one_part_are_messages(void **state)
{
    (void)state;
    struct scene scene;
    struct duct_message message;
    scene_open(&scene);
    struct message_part parts[DUCT_PARTS] = {{NULL, 0}};
    for (int i = 0; i < 3 * DUCT_SLOTS; i++) {
        assert_int_equal(duct_write(&scene.left, parts, 1 + i % DUCT_PARTS), STATUS_OK);
        assert_int_equal(duct_read(&scene.right, &message), STATUS_OK);
        assert_int_equal(message.count, 1 + i % DUCT_PARTS);
        duct_release(&scene.right, message.slot, message.generation);
    }
    assert_int_equal(duct_write(&scene.left, parts, 0), STATUS_RANGE);
    assert_int_equal(duct_write(&scene.left, parts, DUCT_PARTS + 1), STATUS_RANGE);
    scene_close(&scene);
}

static void a_full_area_waits_until_something_is_released(void **state)
{
    (void)state;
    struct scene scene;
    struct duct_message messages[3];
    static uint8_t half[AREA / 2 - 64];
    scene_open(&scene);
    assert_int_equal(put(&scene.left, half, sizeof half), STATUS_OK);
    assert_int_equal(put(&scene.left, half, sizeof half), STATUS_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(duct_read(&scene.right, &messages[i]), STATUS_OK);
    assert_int_equal(put(&scene.left, half, 1), STATUS_BUSY);
    /* The one that waits is rung for once, however much is released until it has looked. */
    assert_int_equal(duct_release(&scene.right, messages[1].slot, messages[1].generation), 1);
    assert_int_equal(duct_release(&scene.right, messages[0].slot, messages[0].generation), 0);
    assert_int_equal(put(&scene.left, half, 1), STATUS_OK);
    assert_int_equal(duct_read(&scene.right, &messages[2]), STATUS_OK);
    assert_int_equal(duct_release(&scene.right, messages[2].slot, messages[2].generation), 0); /* nobody waits */
    /* Everything came together again. */
    static uint8_t whole[AREA - 64];
    assert_int_equal(put(&scene.left, whole, sizeof whole), STATUS_OK);
    assert_int_equal(put(&scene.left, whole, sizeof whole + 1), STATUS_RANGE);
    scene_close(&scene);
}

static void a_want_that_is_answered_too_early_is_told_again(void **state)
{
    (void)state;
    struct scene scene;
    struct duct_message messages[4];
    static uint8_t quarter[AREA / 4 - 64], half[AREA / 2 - 64];
    scene_open(&scene);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(put(&scene.left, quarter, sizeof quarter), STATUS_OK);
        assert_int_equal(duct_read(&scene.right, &messages[i]), STATUS_OK);
    }
    assert_int_equal(put(&scene.left, half, sizeof half), STATUS_BUSY);
    assert_int_equal(duct_release(&scene.right, messages[0].slot, messages[0].generation), 1);
    assert_int_equal(put(&scene.left, half, sizeof half), STATUS_BUSY); /* half of what it needs */
    assert_int_equal(duct_release(&scene.right, messages[1].slot, messages[1].generation), 1);
    assert_int_equal(put(&scene.left, half, sizeof half), STATUS_OK);
    scene_close(&scene);
}

static void no_slot_left_is_no_room(void **state)
{
    (void)state;
    struct scene scene;
    struct duct_message first, message;
    scene_open(&scene);
    for (int i = 0; i < DUCT_SLOTS; i++)
        assert_int_equal(put(&scene.left, "x", 1), STATUS_OK);
    assert_int_equal(put(&scene.left, "x", 1), STATUS_BUSY);
    assert_int_equal(duct_read(&scene.right, &first), STATUS_OK);
    assert_int_equal(put(&scene.left, "x", 1), STATUS_BUSY); /* read, and not released */
    assert_int_equal(duct_release(&scene.right, first.slot, first.generation), 1);
    assert_int_equal(put(&scene.left, "x", 1), STATUS_OK);
    for (int i = 0; i < DUCT_SLOTS; i++)
        assert_int_equal(duct_read(&scene.right, &message), STATUS_OK);
    assert_int_equal(duct_read(&scene.right, &message), STATUS_BUSY);
    scene_close(&scene);
}

struct held {
    struct duct_message message;
    uint32_t seed;
    size_t bytes;
};

static void fill(uint8_t *bytes, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(seed + i * 31);
}

/* Random lengths, random holders, random order of release: nothing held is ever written over. */
static void what_is_held_stays_whatever_the_order_of_release(void **state)
{
    (void)state;
    struct scene scene;
    static struct held held[DUCT_SLOTS];
    static uint8_t frame[AREA], wanted[AREA];
    int count = 0, written = 0, refused = 0;
    uint64_t random = 12345;
    scene_open(&scene);
    for (int turn = 0; turn < 40000; turn++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t dice = (uint32_t)(random >> 33);
        if (dice % 2 == 0) {
            size_t bytes = dice / 2 % (dice % 16 == 0 ? 20000 : 900);
            fill(frame, bytes, dice);
            int status = put(&scene.left, frame, bytes);
            assert_true(status == STATUS_OK || status == STATUS_BUSY);
            refused += status == STATUS_BUSY;
            if (status == STATUS_OK) {
                held[count] = (struct held){.seed = dice, .bytes = bytes};
                assert_int_equal(duct_read(&scene.right, &held[count].message), STATUS_OK);
                count++;
                written++;
            }
        } else if (count > 0) {
            int which = (int)(dice / 2 % (uint32_t)count);
            struct held *one = &held[which];
            fill(wanted, one->bytes, one->seed);
            assert_int_equal(one->message.parts[1].bytes, one->bytes);
            assert_memory_equal(one->message.parts[1].data, wanted, one->bytes);
            duct_release(&scene.right, one->message.slot, one->message.generation);
            *one = held[--count];
        }
    }
    assert_true(written > 5000 && refused > 100);
    while (count > 0) {
        count--;
        duct_release(&scene.right, held[count].message.slot, held[count].message.generation);
    }
    assert_int_equal(put(&scene.left, frame, AREA - 64), STATUS_OK); /* all of it came back */
    scene_close(&scene);
}

static void a_sleeper_is_rung_once_a_sleep(void **state)
{
    (void)state;
    struct scene scene;
    struct duct_message message;
    scene_open(&scene);
    assert_int_equal(put(&scene.left, "x", 1), STATUS_OK);
    assert_int_equal(duct_should_ring(&scene.left), 0); /* it is awake */
    assert_int_equal(duct_sleep(&scene.right), 1);      /* and must not sleep now */
    assert_int_equal(duct_read(&scene.right, &message), STATUS_OK);
    duct_wake(&scene.right);
    assert_int_equal(duct_sleep(&scene.right), 0);
    assert_int_equal(put(&scene.left, "x", 1), STATUS_OK);
    assert_int_equal(duct_should_ring(&scene.left), 1);
    assert_int_equal(duct_should_ring(&scene.left), 0);
    duct_wake(&scene.right);
    assert_int_equal(duct_should_ring(&scene.left), 0);
    assert_int_equal(duct_read(&scene.right, &message), STATUS_OK);
    assert_int_equal(duct_sleep(&scene.right), 0);
    assert_int_equal(duct_should_ring(&scene.left), 1);
    scene_close(&scene);
}

static void lie(struct duct_descriptor *descriptor, int which)
{
    switch (which) {
    case 0: descriptor->slot = DUCT_SLOTS; break;
    case 1: descriptor->parts = 0; break;
    case 2: descriptor->parts = DUCT_PARTS + 1; break;
    case 3: descriptor->offset = AREA; break;
    case 4: descriptor->offset += 1; break;
    case 5: descriptor->offset = UINT64_MAX - 63; break;
    case 6: descriptor->bytes[0] = AREA + 1; break;
    case 7: descriptor->bytes[1] = UINT64_MAX; break;
    case 8: descriptor->bytes[0] = UINT64_MAX - 62; break;
    case 9: descriptor->bytes[1] = AREA - 63; break; /* ends one byte too late */
    default: descriptor->parts = UINT32_MAX; break;
    }
}

static void lying_descriptors_break_the_duct_for_ever(void **state)
{
    (void)state;
    for (int which = 0; which <= 10; which++) {
        struct scene scene;
        struct duct_message message;
        scene_open(&scene);
        assert_int_equal(put(&scene.left, "payload", 7), STATUS_OK);
        assert_int_equal(put(&scene.left, "payload", 7), STATUS_OK);
        lie(&scene.left_memory->ring[0], which);
        assert_int_equal(duct_read(&scene.right, &message), STATUS_FORMAT);
        assert_int_equal(duct_read(&scene.right, &message), STATUS_FORMAT);
        assert_false(duct_has_message(&scene.right));
        assert_int_equal(put(&scene.right, "answer", 6), STATUS_FORMAT);
        scene_close(&scene);
    }
}

static void lying_counters_are_found(void **state)
{
    (void)state;
    struct scene scene;
    struct duct_message message;
    scene_open(&scene);
    atomic_store(&scene.left_memory->published, DUCT_SLOTS + 1);
    assert_int_equal(duct_read(&scene.right, &message), STATUS_FORMAT);
    scene_close(&scene);
    scene_open(&scene);
    atomic_store(&scene.right_memory->taken, 1); /* of a message that was never written */
    assert_int_equal(put(&scene.left, "payload", 7), STATUS_FORMAT);
    scene_close(&scene);
}

static void released_by_a_liar_is_only_written_over(void **state)
{
    (void)state;
    struct scene scene;
    struct duct_message message;
    scene_open(&scene);
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(put(&scene.left, "payload", 7), STATUS_OK);
        for (int slot = 0; slot < DUCT_SLOTS; slot++)
            atomic_store(&scene.right_memory->released[slot], scene.left.generation[slot] + (uint32_t)(i % 3) - 1);
        assert_int_equal(duct_read(&scene.right, &message), STATUS_OK);
        duct_release(&scene.right, message.slot, message.generation);
    }
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_read_where_it_was_written),
        cmocka_unit_test(empty_parts_and_one_part_are_messages),
        cmocka_unit_test(a_full_area_waits_until_something_is_released),
        cmocka_unit_test(a_want_that_is_answered_too_early_is_told_again),
        cmocka_unit_test(no_slot_left_is_no_room),
        cmocka_unit_test(what_is_held_stays_whatever_the_order_of_release),
        cmocka_unit_test(a_sleeper_is_rung_once_a_sleep),
        cmocka_unit_test(lying_descriptors_break_the_duct_for_ever),
        cmocka_unit_test(lying_counters_are_found),
        cmocka_unit_test(released_by_a_liar_is_only_written_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
