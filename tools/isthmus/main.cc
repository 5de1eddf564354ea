#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/nearest.h"
#include "base/version.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "topology/topology.h"

namespace isthmus {
namespace {

// What to run once the command line is known to be right.
struct Chosen {
  std::function<int()> run;
};

CLI::App* add_command(CLI::App* parent, const char* name, const char* text,
                      std::function<int()> run, Chosen* chosen) {
  CLI::App* sub = parent->add_subcommand(name, text);
  sub->allow_extras();  // So that parse_command_line() answers, with the nearest flag.
  sub->callback([run = std::move(run), chosen] { chosen->run = run; });
  return sub;
}

std::vector<std::string> known_ops() {
  std::vector<std::string> names;
  for (const OpTraits& traits : kOpTraits) {
    if (traits.scheduled) {
      names.emplace_back(traits.name);
    }
  }
  return names;
}

OpKind op_of(const std::string& text) {
  for (int i = 0; i < kOpKindCount; ++i) {
    const OpKind op = static_cast<OpKind>(i);
    if (op_traits(op).scheduled && text == op_kind_name(op)) {
      return op;
    }
  }
  const std::vector<std::string> known = known_ops();
  const std::string near = nearest(text, known);
  throw CLI::ValidationError(
      "OP", near.empty() ? fmt::format("'{}' is unknown; expected {}", text, fmt::join(known, ", "))
                         : fmt::format("'{}' is unknown; did you mean '{}'?", text, near));
}

void add_place(CLI::App* sub, ScheduleOptions* options, bool op_required) {
  CLI::Option* op = sub->add_option_function<std::string>(
      "op",
      [options](const std::string& text) {
        options->op = op_of(text);
        options->op_given = true;
      },
      fmt::format("one of {}", fmt::join(known_ops(), ", ")));
  op->type_name("OP");
  if (op_required) {
    op->required();
  }
  sub->add_option("--topology", options->topology,
                  "the nodes and their links, as `isthmus info --save FILE` writes them")
      ->type_name("FILE");
  sub->add_option("--ranks", options->ranks,
                  "ranks in all: of the topology, or on nodes of --locals ranks")
      ->check(CLI::Range(1, Topology::kRanksMax))
      ->type_name("N");
  sub->add_option("--nodes", options->nodes, "without a file: nodes of the group (default 1)")
      ->check(CLI::Range(1, Topology::kRanksMax))
      ->type_name("N");
  sub->add_option("--locals", options->locals, "without a file: ranks on each node (default 2)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  sub->add_option("--nodes-per-rack", options->nodes_per_rack,
                  "without a file: nodes whose links to the others are shared (default: all)")
      ->check(CLI::Range(1, Topology::kRanksMax))
      ->type_name("N");
  sub->add_option_function<std::string>(
         "--bytes",
         [options](const std::string& text) {
           const Result<std::uint64_t> bytes = parse_bytes(text);
           if (!bytes.ok()) {
             throw CLI::ValidationError("--bytes", bytes.error().message);
           }
           options->bytes = *bytes;
           options->bytes_given = true;
         },
         "the whole data; of operations with a block per rank: one block (default 1M)")
      ->type_name("SIZE");
  sub->add_flag("--half", options->rounds, "16-bit elements, whose reduction rounds");
}

void add_algorithm(CLI::App* sub, ScheduleOptions* options) {
  sub->add_option("--algorithm,--algo", options->algorithm,
                  "this one in place of the one that would be chosen")
      ->type_name("NAME");
  sub->add_option("--root", options->root,
                  "root of a broadcast, reduce, gather or scatter (default 0)")
      ->type_name("RANK");
}

void add_draw(CLI::App* schedule, ScheduleOptions* options, Chosen* chosen) {
  CLI::App* drawing = add_command(
      schedule, "draw",
      "the same as a picture: when each rank does what, and when the ways between nodes are in use",
      [options] { return run_schedule_draw(*options); }, chosen);
  add_place(drawing, options, true);
  add_algorithm(drawing, options);
  drawing->add_flag("--rendezvous", options->rendezvous,
                    "a send ends with its receive, not before");
  drawing->add_option("-o,--output", options->output, "the SVG file to write")
      ->type_name("FILE")
      ->required();
  drawing->footer(
      "One row a rank: sends above (orange), work in the middle, receives below (blue); one row a "
      "node:\nits way out. Ranks that do the same as another one are left out. Hovering shows a "
      "step.\n"
      "  isthmus schedule draw all_reduce --nodes 2 --locals 2 --bytes 1M -o timeline.svg");
}

void add_schedule(CLI::App* app, ScheduleOptions* options, Chosen* chosen) {
  CLI::App* schedule = app->add_subcommand(
      "schedule", "show what a collective does, step by step, without running it");
  schedule->allow_extras();
  CLI::App* list = add_command(
      schedule, "list", "the algorithms, what they cost, and which would be chosen",
      [options] { return run_schedule_list(*options); }, chosen);
  add_place(list, options, false);
  CLI::App* show = add_command(
      schedule, "show", "the steps of one rank", [options] { return run_schedule_show(*options); },
      chosen);
  add_place(show, options, true);
  add_algorithm(show, options);
  show->add_option("--rank", options->rank, "whose steps (default 0)")->type_name("RANK");
  CLI::App* explanation = add_command(
      schedule, "explain", "which algorithm is picked, its predicted time, and why no other",
      [options] { return run_schedule_explain(*options); }, chosen);
  add_place(explanation, options, true);
  explanation
      ->add_option("--algorithm,--algo", options->algorithm,
                   "this one in place of the one that would be chosen")
      ->type_name("NAME");
  explanation->add_flag("--json", options->json, "for programs");
  CLI::App* proof = add_command(
      schedule, "verify",
      "prove an operation's schedules for all ranks (without --bytes: all sizes)",
      [options] { return run_schedule_verify(*options); }, chosen);
  add_place(proof, options, true);
  proof
      ->add_option("--algorithm,--algo", options->algorithm,
                   "this one only (default: all that fit)")
      ->type_name("NAME");
  CLI::App* cost = add_command(
      schedule, "cost", "what the ranks send, copy and reduce",
      [options] { return run_schedule_cost(*options); }, chosen);
  add_place(cost, options, true);
  add_algorithm(cost, options);
  CLI::App* simulation = add_command(
      schedule, "simulate", "run all ranks in model time, without a network (docs/simulation.md)",
      [options] { return run_schedule_simulate(*options); }, chosen);
  add_place(simulation, options, true);
  add_algorithm(simulation, options);
  simulation->add_flag("--rendezvous", options->rendezvous,
                       "a send ends with its receive, not before");
  simulation->add_flag("--json", options->json, "for programs");
  simulation->add_flag("--timeline", options->timeline, "every step's begin and end");
  add_draw(schedule, options, chosen);
}

void add_save(CLI::App* sub, InfoOptions* info) {
  sub->add_option("--save", info->save,
                  "write a topology file (docs/topology.md): of this machine, or started as the "
                  "ranks of a job, of all their nodes")
      ->type_name("FILE");
  sub->add_option("--ranks", info->ranks, "--save, no job: ranks on the node (default: processors)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  sub->add_option("--nodes", info->nodes,
                  "--save, no job: how many nodes like this one (default 1)")
      ->check(CLI::Range(1, Topology::kRanksMax))
      ->type_name("N");
  sub->add_option("--between-us", info->between_us,
                  "--save: one message's latency between nodes (default: measured in a job)")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("US");
  sub->add_option("--between-gbit", info->between_gbit,
                  "--save: a node's rate to the others, all rails together (default: measured in a "
                  "job, else what the interfaces say)")
      ->check(CLI::Range(1e-3, 1e6))
      ->type_name("GBIT");
  sub->add_option("--nodes-per-rack", info->nodes_per_rack,
                  "--save, no job: nodes that share a rack, or a switch (default: all)")
      ->check(CLI::Range(1, Topology::kRanksMax))
      ->type_name("N");
  sub->add_option("--across-us", info->across_us,
                  "--save: one message's latency between racks (default: measured in a job)")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("US");
  sub->add_option("--across-gbit", info->across_gbit,
                  "--save: a rack's rate to the others (default: measured in a job, else a node's)")
      ->check(CLI::Range(1e-3, 1e6))
      ->type_name("GBIT");
}

void add_tune(CLI::App* app, TuneOptions* options, Chosen* chosen) {
  CLI::App* tune = add_command(
      app, "tune",
      "measure this machine (seconds), or, started as the ranks of a job, the link between its "
      "nodes, so that isthmus picks the fastest algorithms",
      [options] { return run_tune(*options); }, chosen);
  tune->add_option("--ranks", options->ranks,
                   "numbers of ranks on this machine, with commas (default: 2, 4, ... up to its "
                   "processors, and twice as many where these are few)")
      ->delimiter(',')
      ->check(CLI::Range(2, 1024))
      ->type_name("N");
  tune->add_option("--output", options->output,
                   "the file to write (default: where the library looks, see ISTHMUS_TUNE_FILE)")
      ->type_name("FILE");
  tune->add_flag(
      "--check", options->check,
      "measure the picked algorithms at sizes between the table's, and print how far off "
      "its predictions are; writes nothing");
  tune->add_flag("--json", options->json, "print the table, or the check, for programs");
}

// Nothing to run: names the commands that there are at this level.
int say_missing(const CLI::App& app) {
  fmt::print(stderr, "{}", app.help());
  return kExitUsage;
}

int run(int argc, char** argv) {
  CLI::App app("Looks at this machine, at running ranks and at schedules.", "isthmus");
  app.set_version_flag("--version", fmt::format("isthmus {}", kVersion));
  app.allow_extras();
  app.get_formatter()->column_width(28);
  app.footer(
      "Examples:\n"
      "  isthmus info --env                       every variable, its value and where it is from\n"
      "  isthmus status                           which rank waits for which, right now\n"
      "  isthmus doctor                           what keeps isthmus from being fast here\n"
      "  isthmus tune                             measure, and pick algorithms by what is fast "
      "here\n"
      "  isthmus schedule explain all_reduce --bytes 4M\n"
      "  isthmus info --save cluster.json --ranks 8 --nodes 16 --between-gbit 100\n"
      "  isthmus schedule list all_reduce --topology cluster.json --bytes 64M\n"
      "  isthmus schedule show all_reduce --nodes 2 --locals 2 --rank 1 --bytes 1M\n"
      "  isthmus schedule verify all_reduce --nodes 2 --locals 4\n"
      "  isthmus schedule simulate all_reduce --nodes 16 --locals 8 --bytes 256M\n"
      "  isthmus schedule draw all_reduce --nodes 4 --locals 4 --bytes 4M -o timeline.svg\n"
      "Exit code: 0, or 1 when something is wrong, or 2 for a bad command line.");
  Chosen chosen;
  InfoOptions info;
  StatusOptions status;
  DoctorOptions doctor;
  ScheduleOptions schedule;
  TuneOptions tune;
  CLI::App* sub = add_command(
      &app, "info", "this machine, its limits, and isthmus's variables",
      [&info] { return run_info(info); }, &chosen);
  sub->add_flag("--json", info.json, "for programs");
  sub->add_flag("--env", info.env, "the environment variables only");
  add_save(sub, &info);
  sub = add_command(
      &app, "status", "the ranks running on this machine and whom they wait for",
      [&status] { return run_status(status); }, &chosen);
  sub->add_flag("--json", status.json, "for programs");
  sub = add_command(
      &app, "doctor", "check what isthmus needs, one verdict a line, with a cure",
      [&doctor] { return run_doctor(doctor); }, &chosen);
  sub->add_flag("--json", doctor.json, "for programs");
  add_tune(&app, &tune, &chosen);
  add_schedule(&app, &schedule, &chosen);
  const std::optional<int> code = parse_command_line(app, argc, argv);
  if (code) {
    return *code;
  }
  return chosen.run ? chosen.run() : say_missing(app);
}

}  // namespace
}  // namespace isthmus

int main(int argc, char** argv) {
  return isthmus::run(argc, argv);
}
