// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_COMMANDS_H_
#define QKV_TOOLS_COMMANDS_H_

#include "console.h"

namespace CLI {
class App;
}

// Each adds one command; it runs while the command line is read to its end. `common` must outlive
// the application.
void add_attend(CLI::App& program, const Common& common);
void add_info(CLI::App& program, const Common& common);
void add_words(CLI::App& program, const Common& common);
void add_view(CLI::App& program, const Common& common);
void add_stats(CLI::App& program, const Common& common);
void add_inspect(CLI::App& program, const Common& common);
void add_gen(CLI::App& program, const Common& common);
void add_train(CLI::App& program, const Common& common);
void add_translate(CLI::App& program, const Common& common);
void add_score(CLI::App& program, const Common& common);
void add_bench(CLI::App& program, const Common& common);
void add_demo(CLI::App& program, const Common& common);

#endif  // QKV_TOOLS_COMMANDS_H_
