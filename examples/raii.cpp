// raii.cpp -- using the library from C++17 with hola.hpp: raii MODEL [PROMPT]
#include <hola.hpp>
#include <iostream>

int main(int argc, char **argv) {
    if (argc < 2) {
        std::cerr << "usage: raii MODEL [PROMPT]\n";
        return 2;
    }
    try {
        const hola::model model(argv[1]);
        const hola::tokenizer tokenizer(argv[1]);
        hola::session session(model);
        session.feed(tokenizer, argc > 2 ? argv[2] : "Once upon a time");

        hola::session other = session.clone(); // two continuations of one text
        session.seed(1);
        other.seed(2);
        hola_generate_opts how = HOLA_GENERATE_INIT;
        how.max_tokens = 40;
        session.generate(tokenizer, how, [](std::string_view text) { return bool(std::cout << text << std::flush); });
        std::cout << "\n---\n" << other.generate(tokenizer, 40) << "\n";
    } catch (const hola::error &e) {
        std::cerr << "raii: " << e.what() << "\n";
        return 1;
    }
    return 0;
}
