/* cmd_serve.c -- hola serve: the OpenAI API, sessions and a web page for one model. The implementation is in
 * src/serve. */
#define _GNU_SOURCE
#include "cli/args.h"
#include "cli/cli.h"
#include "core/file.h"
#include "gguf/gguf.h"
#include "serve/server.h"
#include <errno.h>
#include <inttypes.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct serve_opts {
    const char *model, *tokenizer, *host, *key_file, *chat_template, *cache_mem, *session_dir, *max_body;
    struct arg_list cors, hosts, aliases;
    int64_t threads, port, predict, parallel, queue, sessions, connections;
    hola_sampling sampling;
    double t_header, t_body, t_idle, t_send, t_queue, t_drain, lease;
    int backend, dtype, log, listener, products;
    bool no_key, no_page, shared;
};

static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const logs[] = {"text", "json", "none", "debug", NULL};
#define OPTS struct serve_opts
#define SECONDS(name, field, help) OPT_REAL(0, name, field, 0.001, 1e9, "S", help)
static const struct arg options[] = {
    OPT_MODEL,
    OPT_STRING(0, "host", host, "ADDR", "address to listen at (default 127.0.0.1)"),
    OPT_INT(0, "port", port, 0, 65535, "N", "port to listen at (default 8080; 0: a free one)"),
    OPT_STRING(0, "api-key-file", key_file, "FILE", "keys that clients must have, one a line (default: HOLA_API_KEY)"),
    OPT_FLAG(0, "no-api-key", no_key, "let everyone in, at any address"),
    OPT_LIST(0, "cors", cors, "ORIGIN", "let pages of this origin ask; may be given several times"),
    OPT_LIST(0, "allow-host", hosts, "NAME", "a name of this server; may be given several times"),
    OPT_LIST(0, "alias", aliases, "NAME", "the model's id (default: its directory's name); may be given several times"),
    OPT_STRING(0, "chat-template", chat_template, "NAME",
               "plain, chatml, llama2, llama3, mistral, zephyr, or a JSON file (default: by the model's)"),
    OPT_INT('n', "predict", predict, 1, INT32_MAX, "N", "max_tokens of a chat that says nothing (default 1024)"),
    OPT_INT(0, "parallel", parallel, 1, 4096, "N", "sequences under way at a time (default 16; on a GPU 64)"),
    OPT_INT(0, "queue", queue, 0, 1000000, "N", "requests that may wait (default 256)"),
    OPT_STRING(0, "cache-mem", cache_mem, "SIZE", "memory for snapshots and idle sessions (default 1G)"),
    OPT_STRING(0, "session-dir", session_dir, "DIR", "keep sessions in this folder (default: only while it runs)"),
    OPT_FLAG(0, "shared-sessions", shared, "other servers use that folder, too: any of them goes on with any session"),
    OPT_REAL(0, "session-lease", lease, 0.1, 86400, "S",
             "time until a server that is silent loses a session (default 10)"),
    OPT_CHOICE(0, "session-dtype", dtype, dtypes, "type of the numbers in those files (default f32: exact)"),
    OPT_INT(0, "sessions", sessions, 1, 100000000, "N", "sessions at most (default 10000)"),
    OPT_STRING(0, "max-body", max_body, "SIZE", "largest request (default 32M)"),
    OPT_INT(0, "connections", connections, 1, 1000000, "N", "connections at most (default 4096)"),
    SECONDS("timeout-header", t_header, "time for a request's header (default 10)"),
    SECONDS("timeout-body", t_body, "time for its body (default 60)"),
    SECONDS("timeout-idle", t_idle, "time between two requests of a connection (default 75)"),
    SECONDS("timeout-send", t_send, "time in which a client takes nothing (default 30)"),
    SECONDS("timeout-queue", t_queue, "time that a request may wait (default 300)"),
    SECONDS("timeout-drain", t_drain, "time for what runs when it is to end (default 30)"),
    OPT_REAL(0, "temp", sampling.temp, 0, 100, "X", "temperature of requests that say nothing (default 0.8)"),
    OPT_INT(0, "top-k", sampling.top_k, 0, INT32_MAX, "N", "the same for top_k (default 40)"),
    OPT_REAL(0, "top-p", sampling.top_p, 0.0001, 1, "X", "the same for top_p (default 0.95)"),
    OPT_REAL(0, "min-p", sampling.min_p, 0, 1, "X", "the same for min_p (default 0.05)"),
    OPT_REAL(0, "repeat-penalty", sampling.repeat_penalty, 0.01, 100, "X", "the same for repeat_penalty (default 1)"),
    OPT_INT(0, "repeat-last-n", sampling.repeat_last_n, 0, HOLA_RECENT, "N", "the same for repeat_last_n (default 64)"),
    OPT_STRING(0, "tokenizer", tokenizer, "PATH", "tokenizer: a directory, a file or \"byte\" (default: the model's)"),
    OPT_THREADS,
    OPT_BACKEND,
    OPT_PRECISION,
    OPT_FLAG(0, "no-page", no_page, "no page at /"),
    OPT_CHOICE(0, "log", log, logs, "a line per request on stderr (default text); debug: also of slow steps"),
    OPT_END,
};
static const struct args_command command = {
    "serve", "[-m DIR] [options]",
    "Serves a model: the OpenAI API, sessions of constant size, and a page that shows the exact memory.", options};

/* ---- parsing option values ---- */

static bool read_size(const char *text, int64_t *out) {
    char *end;
    if (!text) return true;
    if (text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    const int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (errno || end[shift > 0] || n > INT64_MAX >> (shift + 1)) return false;
    *out = (int64_t)n << shift;
    return true;
}

static bool is_loopback(const char *host) {
    return !strcmp(host, "localhost") || !strcmp(host, "::1") || !strncmp(host, "127.", 4);
}

struct keys {
    char *store;
    const char **item;
    int n;
};

/* The lines of the file, or the single key in the environment. */
static int read_keys(const struct serve_opts *o, struct keys *k) {
    const char *env = getenv("HOLA_API_KEY");
    struct hl_map map = {0};
    if (o->no_key) return CLI_OK;
    if (o->key_file) {
        if (hl_map_open(&map, o->key_file) != HOLA_OK) return cli_fail_library();
        k->store = strndup(map.data, (size_t)map.size);
        hl_map_close(&map);
    } else if (env && *env) k->store = strdup(env);
    else return CLI_OK;
    if (!k->store) return cli_fail("no memory for the keys");
    for (char *line = strtok(k->store, "\r\n"); line; line = strtok(NULL, "\r\n")) {
        const char **more = realloc(k->item, (size_t)(k->n + 1) * sizeof *more);
        if (!more) return cli_fail("no memory for the keys");
        k->item = more;
        k->item[k->n++] = line;
    }
    return k->n > 0 ? CLI_OK : cli_fail("%s: no keys in it", o->key_file ? o->key_file : "HOLA_API_KEY");
}

/* A listening socket passed by systemd (sd_listen_fds(3): LISTEN_PID, LISTEN_FDS, starting at descriptor 3); 0: none,
 * negative: more than one. */
static int passed_socket(void) {
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    if (!pid || !n || strtol(pid, NULL, 10) != (long)getpid()) return 0;
    const int fds = (int)strtol(n, NULL, 10);
    unsetenv("LISTEN_PID"), unsetenv("LISTEN_FDS");
    return fds == 1 ? 3 : fds > 1 ? -1 : 0;
}

/* Whether only processes on this machine can connect. */
static bool is_local(int fd) {
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0) return false;
    if (at.ss_family == AF_INET) return ntohl(((struct sockaddr_in *)&at)->sin_addr.s_addr) >> 24 == 127;
    if (at.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&at)->sin6_addr);
    return at.ss_family == AF_UNIX;
}

static void raise_descriptors(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* ---- signals ---- */

static struct hl_server *running;
static void stop(int sig) {
    (void)sig;
    if (running) hl_server_stop(running);
}
static void catch_signals(void) {
    struct sigaction a = {.sa_handler = stop, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    signal(SIGHUP, SIG_IGN), signal(SIGUSR1, SIG_IGN), signal(SIGUSR2, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* treat a file size limit as an ordinary write error */
}

/* Makes malloc return large blocks (session files, bodies, activations) to the system when freed. By default it raises
 * this threshold whenever a large block is freed, and the heap that then holds them never shrinks. */
static void keep_heap_small(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}
/* ... but what all streams need stays: else an arena gives back what is over 128 kB at its end, and takes it again as
 * new memory. */
static void keep_heap_ready(int64_t bytes) {
#ifdef __GLIBC__
    mallopt(M_TOP_PAD, (int)bytes); /* what is left when some is given back */
    mallopt(M_TRIM_THRESHOLD, 2 * (int)bytes);
#else
    (void)bytes;
#endif
}

/* ---- all of it ---- */

struct serve {
    hola_model *model;
    hola_tokenizer *tokenizer;
    struct hl_template *chat;
    struct hl_serve_engine *engine;
    struct hl_server *server;
    struct keys keys;
    char *name;
};

/* The last component of a path. */
static char *folder_name(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    return strndup(path + from, n - from);
}

/* Next to a GPU the host's threads only copy; all others' time is the clients'. */
static int threads_of(const struct serve_opts *o, bool gpu) {
    enum { MOST = 8 };
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    if (o->threads || !gpu) return (int)o->threads;
    return n < 4 ? 1 : n / 2 < MOST ? (int)(n / 2) : MOST;
}

static int start_engine(struct serve *s, const struct serve_opts *o, int64_t cache_mem, bool gpu, bool *guessed) {
    const char *path = o->tokenizer ? o->tokenizer : o->model;
    const hola_options opt = {
        .threads = threads_of(o, gpu), .backend = cli_backend(o->backend), .precision = (hola_precision)o->products};
    if (hola_model_load(&s->model, o->model, &opt) != HOLA_OK) return cli_fail_library();
    if (hola_tokenizer_load(&s->tokenizer, path) != HOLA_OK) return cli_fail_library();
    const hola_config *cfg = hola_model_config(s->model);
    if (hola_tokenizer_size(s->tokenizer) > cfg->vocab_size)
        return cli_fail("%s: %" PRId64 " tokens, more than the model's %" PRId64, path,
                        hola_tokenizer_size(s->tokenizer), cfg->vocab_size);
    if (hl_template_open(&s->chat, o->chat_template, o->model, s->tokenizer, guessed) != HOLA_OK)
        return cli_fail_library();
    const int32_t eos = hola_tokenizer_eos(s->tokenizer);
    const struct hl_serve_opts e = {.model = s->model,
                                    .tokenizer = s->tokenizer,
                                    .eos = eos >= 0 ? eos : (int32_t)cfg->eos_token_id,
                                    .parallel = o->parallel,
                                    .queue = o->queue,
                                    .cache_mem = cache_mem,
                                    .sessions = o->sessions,
                                    .session_dir = o->session_dir,
                                    .session_dtype = (hola_dtype)o->dtype,
                                    .lock_wait = o->t_drain + 5,
                                    .timeout_queue = o->t_queue,
                                    .save_after = 8,
                                    .lease = o->shared ? o->lease : 0,
                                    .sampling = o->sampling,
                                    .slow_gap = o->log == HL_LOG_DEBUG ? 0.006 : 0};
    keep_heap_ready(hl_serve_heap(o->parallel, cfg->vocab_size));
    return hl_serve_open(&s->engine, &e) == HOLA_OK ? CLI_OK : cli_fail_library();
}

static void say_memory(const struct serve *s, const struct serve_opts *o, int64_t cache_mem) {
    struct stat st;
    hola_session *y;
    int64_t bytes = 0, weights = 0;
    char a[CLI_GROUPED], b[CLI_GROUPED], *file;
    file = hl_is_gguf(o->model) ? strdup(o->model) : hl_path_join(o->model, "model.safetensors");
    if (hola_session_new(&y, s->model) == HOLA_OK) bytes = hola_session_bytes(y), hola_session_free(y);
    if (file && stat(file, &st) == 0) weights = st.st_size;
    free(file);
    fprintf(stderr, "at most about %s MB: weights of %.1f MB, %" PRId64 " sessions of %s bytes, %.1f MB of snapshots\n",
            cli_grouped(a, (weights + (o->parallel + 1) * bytes + cache_mem) / 1000000), (double)weights * 1e-6,
            o->parallel + 1, cli_grouped(b, bytes), (double)cache_mem * 1e-6);
}

static int serve(struct serve *s, const struct serve_opts *o, int64_t cache_mem, int64_t max_body) {
    const char *backend = cli_backend(o->backend);
    const bool gpu = !strncmp(backend, "cuda", 4);
    bool guessed = false;
    int rc = start_engine(s, o, cache_mem, gpu, &guessed);
    if (rc != CLI_OK) return rc;
    s->name = folder_name(o->model);
    if (!s->name) return cli_fail("no memory for a name");
    const char *const own[] = {s->name};
    const struct hl_server_opts h = {.model = s->model,
                                     .tokenizer = s->tokenizer,
                                     .engine = s->engine,
                                     .chat = s->chat,
                                     .template_guessed = guessed,
                                     .host = o->host,
                                     .port = (int)o->port,
                                     .listener = o->listener,
                                     .keys = {s->keys.item, s->keys.n},
                                     .cors = {o->cors.item, o->cors.n},
                                     .hosts = {o->hosts.item, o->hosts.n},
                                     .aliases = {o->aliases.n ? o->aliases.item : own, o->aliases.n ? o->aliases.n : 1},
                                     .backend = backend,
                                     .predict = o->predict,
                                     .parallel = o->parallel,
                                     .queue = o->queue,
                                     .max_body = max_body,
                                     .connections = o->connections,
                                     .sampling = o->sampling,
                                     .timeout_header = o->t_header,
                                     .timeout_body = o->t_body,
                                     .timeout_idle = o->t_idle,
                                     .timeout_send = o->t_send,
                                     .timeout_drain = o->t_drain,
                                     .no_page = o->no_page,
                                     .log = (enum hl_server_log)o->log};
    if (hl_server_open(&s->server, &h) != HOLA_OK) return cli_fail_library();
    if (guessed)
        fprintf(stderr, "the model names no chat template that hola knows: chats use 'plain' (--chat-template)\n");
    say_memory(s, o, cache_mem);
    running = s->server;
    catch_signals();
    const bool six = strchr(o->host, ':') != NULL;
    if (!o->listener)
        fprintf(stderr, "%sclients of OpenAI's API use http://%s%s%s:%d/v1\n",
                o->no_page ? "" : "open the address below in a browser; ", six ? "[" : "", o->host, six ? "]" : "",
                hl_server_port(s->server));
    if (o->listener) printf("listening on a socket that was passed (port %d)\n", hl_server_port(s->server));
    else printf("listening on http://%s%s%s:%d\n", six ? "[" : "", o->host, six ? "]" : "", hl_server_port(s->server));
    fflush(stdout);
    hl_server_run(s->server);
    return CLI_OK;
}

int cmd_serve(int argc, char **argv) {
    struct serve_opts o = {.host = "127.0.0.1",
                           .port = 8080,
                           .predict = 1024,
                           .queue = 256,
                           .sessions = 10000,
                           .connections = 4096,
                           .sampling = hola_sampling_default(),
                           .t_header = 10,
                           .t_body = 60,
                           .t_idle = 75,
                           .t_send = 30,
                           .t_queue = 300,
                           .lease = 10,
                           .t_drain = 30};
    struct serve s = {0};
    int64_t cache_mem = (int64_t)1 << 30, max_body = 32 << 20;
    int rc = args_parse(&command, argc, argv, &o);
    if (rc != ARGS_RUN) return rc;
    if (!read_size(o.cache_mem, &cache_mem)) return cli_usage("serve", "--cache-mem: '%s' is not a size", o.cache_mem);
    if (!read_size(o.max_body, &max_body) || max_body < 1)
        return cli_usage("serve", "--max-body: '%s' is not a size", o.max_body);
    if (o.no_key && o.key_file) return cli_usage("serve", "only one of --api-key-file and --no-api-key can be given");
    if (o.shared && !o.session_dir) return cli_usage("serve", "--shared-sessions: needs --session-dir");
    o.listener = passed_socket();
    if (o.listener < 0) return cli_fail("LISTEN_FDS: only one socket can be used");
    rc = read_keys(&o, &s.keys);
    if (rc == CLI_OK && !(o.listener ? is_local(o.listener) : is_loopback(o.host)) && s.keys.n == 0 && !o.no_key)
        rc = cli_usage("serve", "%s: others can reach it, so it needs keys (--api-key-file) or --no-api-key",
                       o.listener ? "the socket that was passed" : o.host);
    if (rc == CLI_OK) {
        raise_descriptors();
        if (!o.parallel) o.parallel = !strncmp(cli_backend(o.backend), "cuda", 4) ? 64 : 16;
        keep_heap_small();
        rc = serve(&s, &o, cache_mem, max_body);
    }
    hl_serve_close(s.engine); /* its last events go to the server's queues */
    hl_server_close(s.server);
    hl_template_free(s.chat);
    hola_tokenizer_free(s.tokenizer);
    hola_model_free(s.model);
    free(s.keys.store), free(s.keys.item), free(s.name);
    return rc;
}
