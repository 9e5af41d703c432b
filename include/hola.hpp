// hola.hpp -- hola.h for C++17: RAII handles, failures as exceptions. Header only; link with libhola.
#ifndef HOLA_HPP
#define HOLA_HPP
#include "hola.h"
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace hola {

struct error : std::runtime_error {
    hola_status status;
    explicit error(hola_status s) : std::runtime_error(hola_last_error()), status(s) {}
};
inline void check(hola_status s) {
    if (s != HOLA_OK) throw error(s);
}

template <class T, void (*Free)(T *)> struct release {
    void operator()(T *p) const { Free(p); }
};
template <class T, void (*Free)(T *)> using handle = std::unique_ptr<T, release<T, Free>>;

class tokenizer {
    handle<hola_tokenizer, hola_tokenizer_free> t;

  public:
    explicit tokenizer(const std::string &path) {
        hola_tokenizer *p = nullptr;
        check(hola_tokenizer_load(&p, path.c_str()));
        t.reset(p);
    }
    hola_tokenizer *get() const { return t.get(); }
    std::vector<int32_t> encode(std::string_view text) const {
        int32_t *ids = nullptr;
        int64_t n = 0;
        check(hola_tokenizer_encode(get(), text.data(), (int64_t)text.size(), 0, &ids, &n));
        const std::unique_ptr<int32_t, release<void, hola_free>> owner(ids);
        return std::vector<int32_t>(ids, ids + n);
    }
    std::string decode(const std::vector<int32_t> &ids) const {
        char *text = nullptr;
        int64_t len = 0;
        check(hola_tokenizer_decode(get(), ids.data(), (int64_t)ids.size(), &text, &len));
        const std::unique_ptr<char, release<void, hola_free>> owner(text);
        return std::string(text, (size_t)len);
    }
};

class model {
    handle<hola_model, hola_model_free> m;

  public:
    explicit model(const std::string &dir, const char *backend = "auto", int threads = 0) {
        hola_options o = HOLA_OPTIONS_INIT;
        hola_model *p = nullptr;
        o.backend = backend;
        o.threads = threads;
        check(hola_model_load(&p, dir.c_str(), &o));
        m.reset(p);
    }
    hola_model *get() const { return m.get(); }
    const hola_config &config() const { return *hola_model_config(get()); }
};

// The model must outlive its sessions.
class session {
    handle<hola_session, hola_session_free> s;
    explicit session(hola_session *p) : s(p) {}

  public:
    explicit session(const model &m) {
        hola_session *p = nullptr;
        check(hola_session_new(&p, m.get()));
        s.reset(p);
    }
    hola_session *get() const { return s.get(); }
    session clone() const {
        hola_session *p = nullptr;
        check(hola_session_clone(&p, get()));
        return session(p);
    }
    int64_t position() const { return hola_session_position(get()); }
    void seed(uint64_t x) { hola_session_seed(get(), x); }
    void feed(const std::vector<int32_t> &ids) {
        check(hola_session_feed(get(), ids.data(), (int64_t)ids.size(), nullptr));
    }
    void feed(const tokenizer &t, std::string_view text) {
        check(hola_session_feed_text(get(), t.get(), text.data(), (int64_t)text.size(), nullptr));
    }
    int32_t sample(const hola_sampling &p = hola_sampling_default()) {
        int32_t id = -1;
        check(hola_session_sample(get(), &p, &id));
        return id;
    }
    // on_text receives the text as it is generated; returning false stops. Exceptions it throws propagate to the
    // caller.
    hola_end generate(const tokenizer &t, hola_generate_opts how,
                      const std::function<bool(std::string_view)> &on_text) {
        struct state {
            const std::function<bool(std::string_view)> &f;
            std::exception_ptr thrown;
        } now{on_text, nullptr};
        hola_end end = HOLA_END_LENGTH;
        how.ctx = &now;
        how.on_token = [](void *ctx, int32_t, const char *text, int64_t len) -> bool {
            auto *x = static_cast<state *>(ctx);
            if (x->thrown || len == 0) return !x->thrown;
            try {
                return x->f(std::string_view(text, (size_t)len));
            } catch (...) { // no exception may pass through C
                x->thrown = std::current_exception();
                return false;
            }
        };
        const hola_status status = hola_generate(get(), t.get(), &how, nullptr, &end);
        if (now.thrown) std::rethrow_exception(now.thrown);
        check(status);
        return end;
    }
    std::string generate(const tokenizer &t, int64_t max_tokens) {
        hola_generate_opts how = HOLA_GENERATE_INIT;
        std::string text;
        how.max_tokens = max_tokens;
        generate(t, how, [&](std::string_view piece) { return text.append(piece), true; });
        return text;
    }
};

} // namespace hola
#endif
