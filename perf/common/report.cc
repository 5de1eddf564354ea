#include "perf/common/report.h"

#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/version.h"
#include "tools/command_line/command_line.h"

namespace isthmus {
namespace {

using Json = nlohmann::ordered_json;

// About four significant digits in at most seven columns.
std::string short_number(double value) {
  if (value >= 10000.0) {
    return fmt::format("{:.0f}", value);
  }
  return fmt::format("{:.{}f}", value, value >= 1000.0 ? 1 : value >= 10.0 ? 2 : 3);
}

std::string half_of_table(const std::optional<PerfRow>& row) {
  if (!row) {
    return fmt::format("{:>8} {:>7} {:>7} {:>6}", "N/A", "N/A", "N/A", "N/A");
  }
  const std::string wrong = row->wrong ? fmt::format("{}", *row->wrong) : "N/A";
  return fmt::format("{:>8} {:>7} {:>7} {:>6}", short_number(row->time_us),
                     short_number(row->algbw_gbs()), short_number(row->busbw_gbs()), wrong);
}

// A failed write shows in ferror() when the file is closed.
void write(std::FILE* file, const std::string& text) {
  std::fputs(text.c_str(), file);
}

Json json_of(const PerfRow& row) {
  Json out;
  out["op"] = perf_op_name(row.op);
  out["dtype"] = dtype_name(row.dtype);
  out["redop"] = row.red_op;
  out["ranks"] = row.ranks;
  out["count"] = row.count;
  out["bytes"] = row.bytes;
  out["inplace"] = row.in_place;
  out["time_us"] = row.time_us;
  out["time_us_min"] = row.time_us_min;
  out["time_us_max"] = row.time_us_max;
  out["algbw_gbs"] = row.algbw_gbs();
  out["busbw_gbs"] = row.busbw_gbs();
  out["wrong"] = row.wrong ? Json(*row.wrong) : Json(nullptr);
  out["algorithm"] = row.algorithm;
  return out;
}

}  // namespace

double PerfRow::busbw_gbs() const {
  const double others = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  if (op == OpKind::kAllReduce) {
    return algbw_gbs() * 2.0 * others;
  }
  return algbw_gbs() * (op_traits(op).ranked ? others : 1.0);
}

Report::Report(const PerfOptions& options, const PerfMeta& meta)
    : options_(options), meta_(meta), terminal_(::isatty(STDERR_FILENO) == 1) {}

Report::~Report() {
  clear_progress();
}

Result<Report::File> Report::open(const std::string& name) {
  if (name.empty()) {
    return File(nullptr);
  }
  std::FILE* file = name == "-" ? stdout : std::fopen(name.c_str(), "w");
  if (file == nullptr) {
    return system_error(Code::kIo, errno, fmt::format("cannot write the results to '{}'", name));
  }
  return File(file);
}

Status Report::close(File file, const std::string& name) {
  const bool failed = std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0;
  if (failed) {
    return system_error(Code::kIo, errno, fmt::format("cannot write the results to '{}'", name));
  }
  return {};
}

Result<std::unique_ptr<Report>> Report::create(const PerfOptions& options, const PerfMeta& meta) {
  std::unique_ptr<Report> report = std::make_unique<Report>(options, meta);
  ISTHMUS_ASSIGN(report->json_, open(options.json));
  ISTHMUS_ASSIGN(report->csv_, open(options.csv));
  if (report->csv_) {
    write(report->csv_.get(),
          "op,dtype,redop,ranks,count,bytes,inplace,time_us,time_us_min,time_us_max,algbw_gbs,"
          "busbw_gbs,wrong,algorithm\n");
    std::fflush(report->csv_.get());
  }
  if (options.table()) {
    report->write_header();
  }
  return report;
}

void Report::write_header() const {
  const Json machine = Json::parse(meta_.machine_json, nullptr, false);
  fmt::print("# isthmus {}, {} ranks on {} node{}, host {}\n", kVersion, meta_.ranks, meta_.nodes,
             meta_.nodes == 1 ? "" : "s",
             machine.is_object() ? machine.value("host", "unknown") : "unknown");
  fmt::print("# {}\n#\n", meta_.command);
  fmt::print("#{:63}{:^31} {:^31}\n", "", "out-of-place", "in-place");
  fmt::print("# {:>12} {:>13} {:>9} {:>6} {:>6}", "size", "count", "type", "redop", "root");
  for (int half = 0; half < 2; ++half) {
    fmt::print(" {:>8} {:>7} {:>7} {:>6}", "time", "algbw", "busbw", "#wrong");
  }
  fmt::print("  algorithm\n# {:>12} {:>13} {:>9} {:>6} {:>6}", "(B)", "(elements)", "", "", "");
  for (int half = 0; half < 2; ++half) {
    fmt::print(" {:>8} {:>7} {:>7} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
  }
  fmt::print("\n");
  std::fflush(stdout);
}

void Report::clear_progress() {
  if (shown_) {
    fmt::print(stderr, "\r\x1b[K");
    shown_ = false;
  }
}

void Report::progress(const std::string& text) {
  if (terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", text);
    std::fflush(stderr);
    shown_ = true;
  }
}

void Report::write_csv(const PerfRow& row) {
  write(csv_.get(), fmt::format("{},{},{},{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{},{}\n",
                                perf_op_name(row.op), dtype_name(row.dtype), row.red_op, row.ranks,
                                row.count, row.bytes, row.in_place, row.time_us, row.time_us_min,
                                row.time_us_max, row.algbw_gbs(), row.busbw_gbs(),
                                row.wrong ? fmt::format("{}", *row.wrong) : "", row.algorithm));
  std::fflush(csv_.get());
}

void Report::add(const std::optional<PerfRow>& out_of_place,
                 const std::optional<PerfRow>& in_place) {
  clear_progress();
  for (const std::optional<PerfRow>* row : {&out_of_place, &in_place}) {
    if (*row) {
      rows_.push_back(**row);
      if (csv_) {
        write_csv(**row);
      }
    }
  }
  if (options_.table() && !rows_.empty()) {
    const PerfRow& row = out_of_place ? *out_of_place : rows_.back();
    fmt::print("  {:>12} {:>13} {:>9} {:>6} {:>6} {} {}  {}\n", row.bytes, row.count,
               dtype_name(row.dtype), row.red_op, row.root, half_of_table(out_of_place),
               half_of_table(in_place), row.algorithm);
    std::fflush(stdout);
  }
}

Status Report::write_json() {
  Json out;
  Json& meta = out["meta"];
  meta["machine"] = Json::parse(meta_.machine_json, nullptr, false);
  meta["version"] = kVersion;
  meta["ranks"] = meta_.ranks;
  meta["nodes"] = meta_.nodes;
  meta["command"] = meta_.command;
  out["rows"] = Json::array();
  for (const PerfRow& row : rows_) {
    out["rows"].push_back(json_of(row));
  }
  write(json_.get(), out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  return close(std::move(json_), options_.json);
}

Result<bool> Report::finish() {
  clear_progress();
  std::int64_t wrong = 0;
  bool checked = false;
  double busbw = 0.0;
  for (const PerfRow& row : rows_) {
    wrong += row.wrong.value_or(0);
    checked = checked || row.wrong.has_value();
    busbw += row.busbw_gbs();
  }
  if (options_.table()) {
    const std::string verdict =
        !checked ? "not checked" : fmt::format("{} {}", wrong, wrong == 0 ? "OK" : "FAILED");
    fmt::print("# Out of bounds values : {}\n", verdict);
    fmt::print("# Avg bus bandwidth    : {:.6g}\n#\n",
               rows_.empty() ? 0.0 : busbw / static_cast<double>(rows_.size()));
    std::fflush(stdout);
  }
  if (json_) {
    ISTHMUS_TRY(write_json());
  }
  if (csv_) {
    ISTHMUS_TRY(close(std::move(csv_), options_.csv));
  }
  return wrong == 0;
}

}  // namespace isthmus
