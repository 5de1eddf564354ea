// `isthmus schedule draw`: the simulated times of a schedule's steps as an SVG picture.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "schedule/geometry.h"
#include "schedule/simulate.h"
#include "tools/command_line/command_line.h"
#include "tools/isthmus/commands.h"
#include "tools/isthmus/schedule_build.h"
#include "tools/isthmus/write_file.h"

namespace isthmus {
namespace {

// More than this neither a browser nor a reader copes with.
constexpr std::size_t kRanksMax = 64;
constexpr std::size_t kStepsMax = 20000;

constexpr double kWidth = 1200.0;  // of the time axis, in pixels
constexpr double kLeft = 110.0;    // of it: names
constexpr double kTop = 74.0;
constexpr double kRow = 34.0;      // of a rank: sends, work, receives, one below the other
constexpr double kNeckRow = 16.0;  // of a node
constexpr double kLeast = 0.6;     // of a step that takes no time
constexpr int kTicks = 10;

struct Look {
  std::string_view colour;
  double top;  // within the rank's row
  double height;
};

// By StepKind. Told apart without colour too: messages are thin, above (out) and below (in).
constexpr std::array<Look, kStepKindCount> kLooks = {{{"#d95f02", 3.0, 6.0},
                                                      {"#7570b3", 25.0, 6.0},
                                                      {"#1b9e77", 10.0, 14.0},
                                                      {"#e7298a", 10.0, 14.0},
                                                      {"#222222", 10.0, 14.0},
                                                      {"#bbbbbb", 10.0, 14.0}}};

constexpr std::string_view kNeckColour = "#a6761d";

const Look& look_of(StepKind kind) {
  return kLooks[static_cast<std::size_t>(kind)];
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

class Drawing {
 public:
  Drawing(const ScheduleOptions& options, const NodeView& view, const Choice& choice,
          const Simulation& run)
      : options_(options), view_(view), choice_(choice), run_(run) {}

  Result<std::string> svg(const ScheduleSource& build) {
    for (const StepTimes& times : run_.timeline) {
      if (!schedules_.contains(times.rank)) {
        ISTHMUS_ASSIGN(schedules_[times.rank], build(times.rank));
      }
    }
    place_rows();
    begin();
    axis();
    rows();
    for (const StepTimes& times : run_.timeline) {
      step(times);
    }
    text_ += "</svg>\n";
    return std::move(text_);
  }

 private:
  template <typename... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
  }

  int node_of(std::uint32_t rank) const { return view_.topology.node_of(static_cast<int>(rank)); }

  double x_of(double us) const {
    return kLeft + (run_.makespan_us > 0.0 ? us / run_.makespan_us * kWidth : 0.0);
  }

  // Node by node: its neck, where there are several nodes, then its ranks.
  void place_rows() {
    std::map<int, std::vector<std::uint32_t>> nodes;
    for (const auto& [rank, schedule] : schedules_) {
      nodes[node_of(rank)].push_back(rank);
    }
    bottom_ = kTop;
    for (const auto& [node, ranks] : nodes) {
      if (view_.topology.nodes() > 1) {
        neck_row_[node] = bottom_;
        bottom_ += kNeckRow;
      }
      for (const std::uint32_t rank : ranks) {
        rank_row_[rank] = bottom_;
        bottom_ += kRow;
      }
      bottom_ += 6.0;
    }
  }

  std::string heading() const {
    return fmt::format("{} of {} by {}: {}", op_kind_name(options_.op), bytes_text(options_.bytes),
                       choice_.algorithm->name, view_.group_text());
  }

  // In words, for who cannot see it.
  std::string described() const {
    double busy = 0.0;
    for (const double us : run_.neck_busy_us) {
      busy = std::max(busy, us);
    }
    std::string out = fmt::format(
        "All ranks have ended after {:.2f} us; the busiest way out of a node is in use for {:.2f} "
        "us of them. Shown are the {} steps of {} of {} ranks{}.",
        run_.makespan_us, busy, run_.timeline.size(), schedules_.size(), view_.topology.ranks(),
        run_.roles < static_cast<std::size_t>(view_.topology.ranks())
            ? "; every other rank does at the same times what one of them does"
            : "");
    for (const auto& [rank, schedule] : schedules_) {
      out += fmt::format(" Rank {} ends at {:.2f} us.", rank, run_.end_us[rank]);
    }
    return out;
  }

  void begin() {
    const double width = kLeft + kWidth + 30.0;
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
        "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" aria-labelledby=\"title desc\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n",
        width, bottom_ + 24.0);
    add("<title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n", escaped(heading()),
        escaped(described()));
    add("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
    add("<text x=\"8\" y=\"18\" font-size=\"14\">{}, {:.2f} us</text>\n", escaped(heading()),
        run_.makespan_us);
    double x = 8.0;
    for (int kind = 0; kind < kStepKindCount; ++kind) {
      legend(look_of(static_cast<StepKind>(kind)).colour,
             step_kind_name(static_cast<StepKind>(kind)), &x);
    }
    if (view_.topology.nodes() > 1) {
      legend(kNeckColour, "on the way out of the node", &x);
    }
  }

  void legend(std::string_view colour, std::string_view name, double* x) {
    add("<rect x=\"{:.0f}\" y=\"28\" width=\"12\" height=\"12\" fill=\"{}\"/>"
        "<text x=\"{:.0f}\" y=\"38\">{}</text>\n",
        *x, colour, *x + 16.0, name);
    *x += 34.0 + 7.0 * static_cast<double>(name.size());
  }

  void axis() {
    for (int tick = 0; tick <= kTicks; ++tick) {
      const double us = run_.makespan_us * tick / kTicks;
      add("<path d=\"M{0:.1f} {1:.0f}V{2:.0f}\" stroke=\"#dddddd\"/><text x=\"{0:.1f}\" "
          "y=\"{3:.0f}\" "
          "text-anchor=\"middle\">{4:.4g} us</text>\n",
          x_of(us), kTop - 6.0, bottom_, kTop - 12.0, us);
    }
  }

  void rows() {
    for (const auto& [node, y] : neck_row_) {
      add("<text x=\"8\" y=\"{:.0f}\">node {} out</text>\n", y + 11.0, node);
    }
    for (const auto& [rank, y] : rank_row_) {
      add("<text x=\"8\" y=\"{:.0f}\">rank {}</text>\n", y + 21.0, rank);
    }
  }

  void bar(double begin_us, double end_us, double y, double height, std::string_view colour,
           std::string_view words) {
    const double x = x_of(begin_us);
    add("<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\">"
        "<title>{}</title></rect>\n",
        x, y, std::max(x_of(end_us) - x, kLeast), height, colour, escaped(words));
  }

  void step(const StepTimes& times) {
    const Schedule& schedule = schedules_.at(times.rank);
    const Step& step = schedule.steps[times.step];
    const Look& look = look_of(step.kind);
    const std::string words = fmt::format("{:.2f} to {:.2f} us, step {}: {}", times.start_us,
                                          times.end_us, times.step, describe(step));
    bar(times.start_us, times.end_us, rank_row_.at(times.rank) + look.top, look.height, look.colour,
        words);
    if (step.kind == StepKind::kSend && node_of(step.peer) != node_of(times.rank)) {
      const Geometry geometry(schedule.partition, static_cast<std::size_t>(options_.bytes));
      const double mib = static_cast<double>(geometry.length(step.begin, step.end)) / (1 << 20);
      const double wire = mib * view_.topology.between().beta_us_per_mib;
      bar(times.end_us - wire, times.end_us, neck_row_.at(node_of(times.rank)) + 2.0,
          kNeckRow - 4.0, kNeckColour, words);
    }
  }

  const ScheduleOptions& options_;
  const NodeView& view_;
  const Choice& choice_;
  const Simulation& run_;
  std::map<std::uint32_t, Schedule> schedules_;  // of the ranks that are drawn
  std::map<std::uint32_t, double> rank_row_;     // upper edges
  std::map<int, double> neck_row_;
  double bottom_ = 0.0;
  std::string text_;
};

Status check_size(const Simulation& run) {
  if (run.roles <= kRanksMax && run.steps <= kStepsMax) {
    return {};
  }
  return Error{
      .code = Code::kInvalidArgument,
      .message = fmt::format(
          "the picture would have {} steps of {} ranks that differ, expected at most {} of "
          "{}: draw fewer ranks or bytes, `isthmus schedule simulate` has the times",
          run.steps, run.roles, kStepsMax, kRanksMax)};
}

Status draw(const ScheduleOptions& options) {
  ISTHMUS_ASSIGN(const NodeView view, view_of(options));
  ISTHMUS_ASSIGN(const Choice choice, choose(view, options));
  SimulateOptions how;
  how.delivery = options.rendezvous ? Delivery::kRendezvous : Delivery::kEager;
  how.timeline = true;
  const auto build = [&](std::uint32_t rank) {
    return build_one(view, choice, options, static_cast<int>(rank));
  };
  ISTHMUS_ASSIGN(const Simulation run,
                 simulate(build, view.topology, static_cast<std::size_t>(options.bytes), how));
  ISTHMUS_TRY(check_size(run));
  ISTHMUS_ASSIGN(const std::string svg, Drawing(options, view, choice, run).svg(build));
  ISTHMUS_TRY(write_file(options.output, svg));
  fmt::print("wrote {}: {} steps of {} of {} ranks, {:.2f} us\n", options.output,
             run.timeline.size(), run.roles, view.topology.ranks(), run.makespan_us);
  return {};
}

}  // namespace

int run_schedule_draw(const ScheduleOptions& options) {
  const Status drawn = draw(options);
  return drawn.ok() ? 0 : say_schedule_error(drawn.error());
}

}  // namespace isthmus
