/* test_json.c -- text as JSON: what is written without a tree is what jansson writes, whatever the bytes are. */
#include "check.h"
#include "core/json.h"

static void put(void **state) {
    struct hl_text out = {0};
    int64_t escaped = 0, replaced = 0;
    (void)state;
    for (uint64_t round = 0; round < 20000; round++) {
        char bytes[24];
        const int64_t n = (int64_t)(check_mix(round) % sizeof bytes);
        for (int64_t i = 0; i < n; i++) { /* letters, quotes and backslashes, controls, parts of characters */
            const uint64_t r = check_mix(round * 64 + (uint64_t)i + 1);
            const unsigned char some[8] = {'a', 'z', '"', '\\', '/', 0x7f, 0xe2, 0x82};
            const uint64_t kinds[4] = {some[r / 4 % 8], r / 4 % 32, r / 4 % 256, 'a' + r / 4 % 26};
            bytes[i] = (char)kinds[r % 4];
        }
        json_t *tree = hl_json_text(bytes, n);
        char *want = json_dumps(tree, JSON_ENCODE_ANY | JSON_COMPACT);
        assert_non_null(want);
        hl_text_clear(&out);
        hl_text_put(&out, "\"", 1);
        CHECK_OK(hl_json_put(&out, bytes, n));
        hl_text_put(&out, "\"", 1);
        if (strcmp(out.data, want)) fail_msg("%s, jansson: %s", out.data, want);
        escaped += strchr(want, '\\') != NULL, replaced += strstr(want, "\xef\xbf\xbd") != NULL;
        free(want);
        json_decref(tree);
    }
    assert_true(escaped > 1000 && replaced > 1000);
    hl_text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(put)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
