/* test_sft.c -- fine-tuning on conversations: which tokens are trained, that shards, rows and batches keep it, and that a
 * masked loss is the loss of the selected targets. */
#define _GNU_SOURCE
#include "chat/template.h"
#include "data/dataset.h"
#include "data/shard.h"
#include "mixers/gdn/gdn_layer.h"
#include "model/trainer.h"
#include "models.h"
#include "serve/prompt.h"
#include "temp.h"
#include "train/batch.h"

/* ---- the loss ---- */

enum { N = 240 };
static const int64_t starts[] = {0, 70, 71, 171};
enum { DOCS = 4 };

/* Answers of several lengths; one document has none. */
static void make_mask(uint8_t mask[N], int shift) {
    for (int i = 0; i < N; i++) mask[i] = (i + N - shift) % 23 > 15 && !((i + N - shift) % N >= 71 && i < 171);
}
static bool is_target(const uint8_t *mask, int i) {
    for (int d = 0; d < DOCS; d++)
        if (i == starts[d]) return false;
    return mask[i];
}

/* By the reference, in another way: the targets are picked by hand, their losses summed in double. */
static double plainly(int v, const int32_t *ids, const uint8_t *mask, double weight, real *grads) {
    hola_model *m = variant_model(v, 1, "cpu-ref");
    struct hl_seg seg[DOCS];
    struct hl_rows rows = {.T = N, .n = DOCS, .seg = seg};
    struct hl_activations acts = {.pass = HL_TRAIN, .backend = m->backend};
    int32_t target[N];
    double sum = 0;
    for (int d = 0; d < DOCS; d++)
        seg[d] = (struct hl_seg){.row = starts[d], .len = (d + 1 < DOCS ? starts[d + 1] : N) - starts[d]};
    for (int i = 0; i < N; i++) target[i] = i + 1 < N && is_target(mask, i + 1) ? ids[i + 1] : -1;
    CHECK_OK(hl_model_need_master(m));
    CHECK_OK(hl_activations_reserve(&acts, &m->cfg, &rows, N));
    hl_model_forward(m, &acts, &rows, ids);
    hl_model_loss(m, &acts, N, target, weight, grads);
    hl_model_backward(m, &acts, &rows, ids, grads);
    for (int i = 0; i < N; i++) sum += acts.nll[i];
    hl_activations_free(&acts);
    hola_model_free(m);
    return sum;
}

static void the_loss_is_that_of_the_answers(void **state) {
    uint8_t mask[N], other[N], none[N] = {0};
    (void)state;
    make_mask(mask, 0), make_mask(other, 1);
    for (int v = 0; v < VARIANTS; v++) {
        hola_model *m = variant_model(v, 2, NULL);
        const int64_t total = m->params.total;
        int32_t *ids = random_ids(N, m->cfg.vocab_size, 5);
        real *want = calloc((size_t)total, sizeof *want), *parts = calloc((size_t)total, sizeof *parts);
        const hola_train_opts opt = {.max_tokens = N};
        double loss, seen, second, sum_of_all;
        int64_t n = 0, targets, more;
        hola_trainer *t;
        for (int i = 0; i < N; i++) n += is_target(mask, i);
        const double weight = 1.0 / (double)n, sum = plainly(v, ids, mask, weight, want);
        CHECK_OK(hola_trainer_new(&t, m, &opt));
        const real *grads = hl_trainer_view(t).grads;
        CHECK_OK(hola_trainer_accumulate_masked(t, ids, N, starts, DOCS, mask, weight, &loss, &targets));
        assert_int_equal(targets, n);
        assert_true(fabs(loss - sum) < 1e-5 * sum);
        CHECK_NEAR(grads, want, 1, total, 2e-4, "%s", variants[v].name);
        CHECK_OK(hola_trainer_evaluate_masked(t, ids, N, starts, DOCS, mask, &seen, &targets));
        assert_true(targets == n && fabs(seen - loss) < 1e-6 * sum);
        hl_trainer_clear(t);
        /* one token late: other targets, another loss, another gradient */
        CHECK_OK(hola_trainer_accumulate_masked(t, ids, N, starts, DOCS, other, weight, &loss, NULL));
        assert_true(fabs(loss - sum) > 1e-3 * sum);
        CHECK_FAR(grads, want, 1, total, 1e-2);
        hl_trainer_clear(t);
        /* in slices that hold many targets, few and none; every target weighs the same */
        CHECK_OK(hola_trainer_accumulate_masked(t, ids, 71, starts, 2, mask, weight, &loss, &targets));
        CHECK_OK(hola_trainer_accumulate_masked(t, ids + 71, 100, NULL, 0, mask + 71, weight, &seen, &more));
        assert_true(more == 0 && seen == 0);
        CHECK_OK(hola_trainer_accumulate_masked(t, ids + 171, N - 171, NULL, 0, mask + 171, weight, &second, &more));
        assert_int_equal(targets + more, n);
        assert_true(fabs(loss + second - sum) < 1e-5 * sum);
        CHECK_NEAR(grads, want, 1, total, 2e-4, "%s, slices", variants[v].name);
        hl_trainer_clear(t);
        /* a mean of the slices' means would weigh them alike */
        CHECK_OK(hola_trainer_accumulate_masked(t, ids, 71, starts, 2, mask, 0.5 / (double)targets, NULL, NULL));
        CHECK_OK(
            hola_trainer_accumulate_masked(t, ids + 171, N - 171, NULL, 0, mask + 171, 0.5 / (double)more, NULL, NULL));
        if (targets != more) CHECK_FAR(grads, want, 1, total, 1e-2);
        hl_trainer_clear(t);
        /* nothing to learn: nothing is trained */
        CHECK_OK(hola_trainer_accumulate_masked(t, ids, N, starts, DOCS, none, weight, &loss, &targets));
        assert_true(targets == 0 && loss == 0);
        for (int64_t i = 0; i < total; i++) assert_true(grads[i] == 0);
        /* what one mask selects and what it leaves are the whole */
        for (int i = 0; i < N; i++) other[i] = !mask[i];
        CHECK_OK(hola_trainer_accumulate_masked(t, ids, N, starts, DOCS, mask, weight, &loss, NULL));
        CHECK_OK(hola_trainer_accumulate_masked(t, ids, N, starts, DOCS, other, weight, &second, NULL));
        memcpy(parts, grads, (size_t)total * sizeof *parts);
        hl_trainer_clear(t);
        CHECK_OK(hola_trainer_accumulate(t, ids, N, starts, DOCS, weight, &sum_of_all, NULL));
        assert_true(fabs(loss + second - sum_of_all) < 1e-6 * sum_of_all);
        CHECK_NEAR(grads, parts, 1, total, 1e-4, "%s, both halves", variants[v].name);
        hola_trainer_free(t);
        make_mask(other, 1);
        free(want), free(parts), free(ids);
        hola_model_free(m);
    }
}

/* ---- shards and rows ---- */

enum { TOKENS = 5000, VOCAB = 400 };
struct text {
    int32_t ids[TOKENS];
    uint8_t flags[TOKENS];
};

/* Conversations of 2 to 60 tokens and one of 700; every ninth has nothing to learn. BOS stands inside of them too. */
static struct text *make_text(void) {
    struct text *x = calloc(1, sizeof *x);
    int64_t at = 0;
    for (int k = 0; at < TOKENS; k++) {
        int64_t len = k == 20 ? 700 : 2 + (int64_t)(check_mix((uint64_t)k) % 59);
        if (len > TOKENS - at) len = TOKENS - at;
        for (int64_t i = 0; i < len; i++) {
            const uint64_t r = check_mix((uint64_t)(at + i) * 7);
            x->ids[at + i] = (int32_t)(r % VOCAB);
            x->flags[at + i] = (uint8_t)((i == 0 ? HL_TOKEN_BEGINS : 0) | (k % 9 && r % 3 == 0 ? HL_TOKEN_TRAINED : 0));
        }
        at += len;
    }
    return x;
}

static void write_set(const char *dir, const char *name, const struct text *x, int64_t vocab, int64_t per_file) {
    struct hl_shards w;
    CHECK_OK(hl_shards_begin(&w, dir, name, vocab, per_file));
    w.flagged = w.keep = true;
    for (int64_t at = 0, step = 1; at < TOKENS; at += step, step = step * 3 % 977 + 1) {
        if (step > TOKENS - at) step = TOKENS - at;
        CHECK_OK(hl_shards_write(&w, x->ids + at, x->flags + at, step));
    }
    CHECK_OK(hl_shards_end(&w));
    hl_shards_free(&w);
}

static void shards_keep_the_flags(void **state) {
    static const int64_t vocabs[] = {VOCAB, 100000}, files[] = {TOKENS, 1024, 777};
    struct text *x = make_text();
    (void)state;
    for (int v = 0; v < 2; v++)
        for (int f = 0; f < 3; f++) {
            char *dir = temp_new();
            int64_t at = 0;
            write_set(dir, "train", x, vocabs[v], files[f]);
            for (int64_t i = 0; at < TOKENS; i++) {
                char name[64];
                struct hl_shard s;
                int32_t ids[TOKENS];
                uint8_t flags[TOKENS];
                snprintf(name, sizeof name, "train_%06d.bin", (int)i);
                char *path = hl_path_join(dir, name);
                CHECK_OK(hl_shard_open(&s, path));
                assert_int_equal(s.width, v ? 4 : 2);
                CHECK_OK(hl_shard_read(&s, 0, s.n, VOCAB, ids));
                hl_shard_flags(&s, 0, s.n, flags);
                assert_memory_equal(ids, x->ids + at, (size_t)s.n * sizeof *ids);
                assert_memory_equal(flags, x->flags + at, (size_t)s.n);
                hl_shard_flags(&s, s.n / 3, s.n / 5, flags);
                assert_memory_equal(flags, x->flags + at + s.n / 3, (size_t)(s.n / 5));
                at += s.n;
                hl_shard_close(&s);
                free(path);
            }
            assert_int_equal(at, TOKENS);
            temp_remove(dir);
        }
    free(x);
}

/* Every bit of the file counts. */
static void damage_is_seen(void **state) {
    struct text *x = make_text();
    char *dir = temp_new();
    int64_t size;
    struct hl_shard s;
    (void)state;
    write_set(dir, "train", x, VOCAB, 61);
    char *file = temp_read(dir, "train_000000.bin", &size);
    assert_int_equal(size, HL_SHARD_HEADER + 2 * 61 + 2 * 8);
    CHECK_OK(hl_shard_parse(&s, file, size, "f"));
    hl_shard_close(&s);
    for (int64_t bit = 0; bit < 8 * size; bit++) {
        file[bit / 8] = (char)(file[bit / 8] ^ 1 << bit % 8);
        if (hl_shard_parse(&s, file, size, "f") != HOLA_EFORMAT) fail_msg("bit %lld", (long long)bit);
        file[bit / 8] = (char)(file[bit / 8] ^ 1 << bit % 8);
    }
    for (int64_t n = 0; n < size; n++) assert_int_equal(hl_shard_parse(&s, file, n, "f"), HOLA_EFORMAT);
    file[4] = 2;
    CHECK_FAILS(hl_shard_parse(&s, file, size, "f"), HOLA_EFORMAT, "version 2");
    free(file), free(x);
    temp_remove(dir);
}

/* Rows: each conversation once, from its beginning, with its flags; only what a row holds; those without a target not. */
static void rows_are_conversations(void **state) {
    enum { SEQ = 128 };
    struct text *x = make_text();
    char *dir = temp_new();
    struct hl_dataset *d;
    int64_t trained = 0, cut = 0, lost = 0, idle = 0, docs = 0, seen = 0;
    (void)state;
    write_set(dir, "train", x, VOCAB, 777);
    for (int64_t at = 0, end; at < TOKENS; at = end) {
        int64_t mine = 0;
        for (end = at + 1; end < TOKENS && !(x->flags[end] & HL_TOKEN_BEGINS); end++)
            if (end - at < SEQ) mine += x->flags[end] & HL_TOKEN_TRAINED;
            else lost += x->flags[end] & HL_TOKEN_TRAINED;
        trained += mine, cut += end - at > SEQ, idle += mine == 0, docs++;
    }
    assert_true(cut == 1 && lost > 0 && idle > 3);
    CHECK_OK(hl_dataset_open(&d, dir, "train", VOCAB));
    CHECK_OK(hl_dataset_rows(d, HL_ROWS_STREAM, SEQ, -1, NULL)); /* packed all the same, without any BOS */
    const struct hl_dataset_info *info = hl_dataset_info(d);
    assert_true(info->flagged && info->trained == trained && info->documents == docs);
    assert_true(info->talk.cut == cut && info->talk.lost == lost && info->talk.idle == idle);
    assert_int_equal(info->talk.longest, 700);
    uint8_t *taken = calloc(TOKENS, 1);
    for (int64_t r = 0; r < info->rows; r++) {
        int32_t ids[SEQ];
        int64_t begin[SEQ];
        uint8_t mask[SEQ];
        struct hl_row row = {.ids = ids, .starts = begin, .trained = mask};
        CHECK_OK(hl_dataset_row_at(d, r, &row));
        for (int64_t k = 0; k < row.n_starts; k++) {
            const int64_t from = begin[k], n = (k + 1 < row.n_starts ? begin[k + 1] : row.n) - from;
            int64_t at = 0; /* where it is in the text: tokens and beginning are as nowhere else */
            while (at < TOKENS && (!(x->flags[at] & HL_TOKEN_BEGINS) || taken[at] || at + n > TOKENS ||
                                   memcmp(x->ids + at, ids + from, (size_t)n * sizeof *ids) != 0))
                at++;
            assert_in_range(at, 0, TOKENS - 1);
            taken[at] = 1;
            for (int64_t i = 0; i < n; i++) assert_int_equal(mask[from + i], x->flags[at + i] & HL_TOKEN_TRAINED);
            seen++;
        }
    }
    assert_int_equal(seen, docs - idle);
    /* batches count the targets of their rows, and slices are parts of them */
    struct hl_batch b;
    CHECK_OK(hl_batch_new(&b, info->rows, SEQ));
    CHECK_OK(hl_batch_load(&b, d, NULL, 0, info->rows));
    assert_int_equal(b.targets, trained);
    struct hl_slice s = hl_batch_slice(&b, 2, 4);
    assert_ptr_equal(s.trained, b.trained + b.row_at[2]);
    hl_batch_free(&b);
    hl_dataset_free(d);
    /* where nothing fits, one line says so */
    CHECK_OK(hl_dataset_open(&d, dir, "train", VOCAB));
    CHECK_FAILS(hl_dataset_rows(d, HL_ROWS_PACKED, 1, -1, NULL), HOLA_EINVAL, "--seq-len 700 holds the longest");
    hl_dataset_free(d);
    /* text and conversations do not mix */
    struct hl_shards w;
    CHECK_OK(hl_shards_begin(&w, dir, "z_train", VOCAB, 100));
    w.keep = true;
    CHECK_OK(hl_shards_write(&w, x->ids, NULL, 10));
    CHECK_OK(hl_shards_end(&w));
    hl_shards_free(&w);
    CHECK_FAILS(hl_dataset_open(&d, dir, "train", VOCAB), HOLA_EFORMAT, "holds conversations, the other text");
    free(taken), free(x);
    temp_remove(dir);
}

/* ---- lessons ---- */

#define MESSAGE(role, text) \
    { HL_ROLE_##role, text, sizeof text - 1, false }
static const struct hl_chat_message talk[] = {MESSAGE(SYSTEM, "S s"), MESSAGE(USER, "What?"),
                                              MESSAGE(ASSISTANT, "This."), MESSAGE(USER, "And?"),
                                              MESSAGE(ASSISTANT, "That too.")};
enum { TALK = sizeof talk / sizeof *talk };

/* What is trained is what the server would have the model write: each prompt of the server is followed by trained tokens
 * that decode to the answer and what ends it, and nothing else is trained. */
static void lessons_follow_prompts(void **state) {
    static const char *const names[] = {"plain", "chatml", "llama3", "mistral"};
    static const char *const ends[] = {"\n\n", "<|im_end|>\n", "<|eot_id|>", ""};
    hola_tokenizer *t;
    (void)state;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    for (int k = 0; k < 4; k++) {
        struct hl_template *p;
        struct hl_lesson l;
        bool guessed;
        CHECK_OK(hl_template_open(&p, names[k], ".", t, &guessed));
        CHECK_OK(hl_template_lesson(p, talk, TALK, true, &l));
        assert_int_equal(l.answers, 2);
        int64_t trained = 0, wanted = 0;
        for (int64_t i = 0; i < l.ids.n; i++) trained += l.trained[i];
        for (int64_t turn = 2; turn <= TALK; turn += 2) {
            struct hl_chat_tokens x;
            CHECK_OK(hl_template_tokens(p, talk, turn, true, false, &x));
            assert_memory_equal(x.ids.data, l.ids.data, (size_t)x.ids.n * sizeof(int32_t));
            assert_int_equal(l.trained[x.ids.n - 1], 0);
            int64_t end = x.ids.n, len;
            while (end < l.ids.n && l.trained[end]) end++;
            char *text, want[64];
            CHECK_OK(hola_tokenizer_decode(t, l.ids.data + x.ids.n, end - x.ids.n, &text, &len));
            snprintf(want, sizeof want, "%s%s%s", talk[turn].content, ends[k],
                     k == 0 && turn + 1 == TALK ? "User:" : ""); /* the stop of "plain", where nothing follows */
            assert_int_equal(len, strlen(want));
            assert_memory_equal(text, want, strlen(want));
            wanted += end - x.ids.n;
            free(text);
            hl_chat_tokens_free(&x);
        }
        assert_int_equal(trained, wanted);
        hl_lesson_free(&l);
        /* what nobody answers is not there; an answer without text, or with weight 0, is there and not trained */
        struct hl_chat_message other[TALK];
        struct hl_lesson shorter;
        memcpy(other, talk, sizeof talk);
        CHECK_OK(hl_template_lesson(p, talk, TALK - 1, true, &shorter));
        CHECK_OK(hl_template_lesson(p, talk, TALK - 2, true, &l));
        assert_int_equal(l.ids.n, shorter.ids.n);
        assert_int_equal(l.answers, 1);
        hl_lesson_free(&l), hl_lesson_free(&shorter);
        other[2].quoted = true, other[4].len = 0;
        CHECK_OK(hl_template_lesson(p, other, TALK, true, &l));
        assert_int_equal(l.answers, 0);
        for (int64_t i = 0; i < l.ids.n; i++) assert_int_equal(l.trained[i], 0);
        hl_lesson_free(&l);
        CHECK_OK(hl_template_lesson(p, talk, 2, true, &l)); /* no answer at all */
        assert_int_equal(l.answers, 0);
        hl_lesson_free(&l);
        hl_template_free(p);
    }
    /* without a template: the text, its continuation, EOS */
    struct hl_lesson l;
    CHECK_OK(hl_lesson_plain(t, &talk[1], &talk[2], true, &l));
    assert_int_equal(l.ids.n, 1 + 5 + 5 + 1);
    assert_int_equal(l.ids.data[11], hola_tokenizer_eos(t));
    for (int64_t i = 0; i < l.ids.n; i++) assert_int_equal(l.trained[i], i >= 6);
    hl_lesson_free(&l);
    hola_tokenizer_free(t);
}

/* A template whose answers have no end that could be trained is refused; one goes through its file. */
static void templates_travel(void **state) {
    static const char endless[] =
        "{\"system\": [\"\", \"\"], \"user\": [\"Q \", \"\"], \"assistant\": [\"A \", \"\\n\"]}";
    static const char good[] = "{\"system\": [\"\", \"\"], \"user\": [\"Q \", \"\\n\"], \"assistant\": [\"A \", "
                               "\"\\n\"], \"stop\": [\"\\nQ\"]}";
    char *dir = temp_new(), *path = hl_path_join(dir, "t.json"), *copy = hl_path_join(dir, HL_TEMPLATE_FILE);
    struct hl_template *p, *q;
    struct hl_lesson l;
    hola_tokenizer *t;
    bool guessed;
    (void)state;
    CHECK_OK(hola_tokenizer_load(&t, "byte"));
    temp_write(dir, "t.json", endless, sizeof endless - 1);
    CHECK_OK(hl_template_open(&p, path, ".", t, &guessed));
    CHECK_FAILS(hl_template_lesson(p, talk, TALK, true, &l), HOLA_EINVAL, "nothing tells where an answer ends");
    hl_template_free(p);
    temp_write(dir, "t.json", good, sizeof good - 1);
    for (int k = 0; k < 2; k++) {
        char *a, *b;
        int64_t n, m;
        CHECK_OK(hl_template_open(&p, k ? "zephyr" : path, ".", t, &guessed));
        CHECK_OK(hl_template_write(p, copy));
        CHECK_OK(hl_template_open(&q, NULL, dir, t, &guessed));
        assert_false(guessed);
        if (k) assert_string_equal(hl_template_name(q), "zephyr");
        CHECK_OK(hl_template_text(p, talk, TALK - 1, &a, &n));
        CHECK_OK(hl_template_text(q, talk, TALK - 1, &b, &m));
        assert_string_equal(a, b);
        assert_int_equal(hl_template_stops(p), hl_template_stops(q));
        free(a), free(b);
        hl_template_free(p), hl_template_free(q);
    }
    temp_write(dir, HL_TEMPLATE_FILE, "{\"template\": \"vicuna\"}", 22);
    CHECK_FAILS(hl_template_open(&q, NULL, dir, t, &guessed), HOLA_EFORMAT, "there is no \"vicuna\"");
    hola_tokenizer_free(t);
    free(path), free(copy);
    temp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_loss_is_that_of_the_answers),
                                       cmocka_unit_test(shards_keep_the_flags),
                                       cmocka_unit_test(damage_is_seen),
                                       cmocka_unit_test(rows_are_conversations),
                                       cmocka_unit_test(lessons_follow_prompts),
                                       cmocka_unit_test(templates_travel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
