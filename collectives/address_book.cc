#include "collectives/address_book.h"

#include <charconv>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace isthmus {
namespace {

using nlohmann::json;

// What stands in the place of a card or the table: this, the code's number, a blank, the message.
constexpr std::string_view kFailed = "failed: ";

std::string failure_text(const Error& error) {
  return fmt::format("{}{} {}", kFailed, static_cast<unsigned>(error.code), error.message);
}

Error failure_from(std::string_view text) {
  text.remove_prefix(kFailed.size());
  Error error;
  unsigned code = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), code);
  if (failure == std::errc() && code <= static_cast<unsigned>(Code::kInternal)) {
    error.code = static_cast<Code>(code);
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  error.message = text.empty() ? text : text.substr(1);
  return error;
}

std::string to_hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  }
  return text;
}

Result<std::vector<std::byte>> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned value = 0;
    const auto [end, failure] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (failure != std::errc() || end != text.data() + i + 2) {
      return Error{.code = Code::kProtocol,
                   .message = fmt::format("an address in the store is not hexadecimal, got '{}'",
                                          text.substr(i, 2))};
    }
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

constexpr std::string_view kTable = "table";

std::string card_key(const std::string& prefix, int rank) {
  return fmt::format("{}card/{}", prefix, rank);
}

// Whether a rank can be in a world with rank 0.
Status agrees(const RankCard& card, const RankCard& mine) {
  if (card.version != mine.version) {
    return Error{
        .code = Code::kProtocol,
        .culprit = card.rank,
        .message = fmt::format("rank {} runs isthmus {}, rank {} runs {}: install the same "
                               "version everywhere",
                               card.rank, card.version, mine.rank, mine.version)};
  }
  if (card.config_hash != mine.config_hash) {
    return Error{
        .code = Code::kMismatch,
        .culprit = card.rank,
        .message = fmt::format("rank {} and rank {} have different ISTHMUS_ALGO, "
                               "ISTHMUS_STAGING_MB, ISTHMUS_SHM, ISTHMUS_HEAP_GB or "
                               "ISTHMUS_DETERMINISTIC: export the same values to all ranks",
                               card.rank, mine.rank)};
  }
  return {};
}

// Which rack each node is in, by what its ranks say.
class NodeRacks {
 public:
  // Fails where another rank of the node said otherwise.
  Status add(const RankCard& card) {
    const auto [at, is_new] = said_.try_emplace(card.node.hash(), std::pair(card.rank, card.rack));
    const auto& [rank, rack] = at->second;
    if (!is_new && rack != card.rack) {
      return Error{
          .code = Code::kMismatch,
          .culprit = card.rank,
          .message = fmt::format("rank {} and rank {} share a node, but ISTHMUS_RACK_ID is "
                                 "'{}' and '{}': export one value to all ranks of a node",
                                 card.rank, rank, card.rack, rack)};
    }
    return {};
  }

 private:
  std::map<std::uint64_t, std::pair<int, std::string>> said_;  // by which rank, and what
};

// Rank 0: collects all cards and checks that they agree.
Result<std::string> collect(const RankCard& mine, const std::string& tuning, int ranks,
                            Rendezvous& store, const std::string& prefix, Deadline deadline) {
  json table = json::array();
  NodeRacks racks;
  for (int rank = 0; rank < ranks; ++rank) {
    Result<std::string> text = rank == mine.rank ? Result<std::string>(mine.to_json())
                                                 : store.get(card_key(prefix, rank), deadline);
    if (!text.ok()) {
      Error error = text.error();
      error.culprit = rank;
      error.message = fmt::format(
          "rank {} of {} did not come to the rendezvous in time ({}); is it "
          "running, and does it reach MASTER_ADDR?",
          rank, ranks, text.error().message);
      return error;
    }
    if (text->starts_with(kFailed)) {
      Error error = failure_from(*text);
      error.culprit = rank;
      return error;
    }
    ISTHMUS_ASSIGN(const RankCard card, RankCard::from_json(*text));
    ISTHMUS_TRY(agrees(card, mine));
    ISTHMUS_TRY(racks.add(card));
    table.push_back(*text);
  }
  return json{{"cards", std::move(table)}, {"tuning", tuning}}.dump();
}

}  // namespace

std::string RankCard::to_json() const {
  json mask = json::array();
  for (std::size_t i = 0; i < processors.size(); ++i) {
    if (processors.test(i)) {
      mask.push_back(i);
    }
  }
  // 64-bit values travel as text: JSON numbers are doubles to some readers.
  const json card = {{"rank", rank},
                     {"version", version},
                     {"config", fmt::format("{}", config_hash)},
                     {"boot", node.boot_id},
                     {"net", fmt::format("{}", node.network_namespace)},
                     {"ipc", fmt::format("{}", node.ipc_namespace)},
                     {"user", node.user},
                     {"node", node.override_id},
                     {"rack", rack},
                     {"shm", node.shared_memory},
                     {"socket", shared_memory.socket_name},
                     {"token", fmt::format("{}", shared_memory.token)},
                     {"tcp", to_hex(tcp)},
                     {"cpus", mask}};
  return card.dump();
}

Result<RankCard> RankCard::from_json(std::string_view text) {
  const Error malformed{.code = Code::kProtocol,
                        .message =
                            "a rank's card in the rendezvous is malformed: does another "
                            "program use the same store and prefix?"};
  const json card = json::parse(text, nullptr, false);
  if (!card.is_object()) {
    return malformed;
  }
  RankCard out;
  const auto number = [&](const char* key) -> std::uint64_t {
    const std::string digits = card.value(key, "");
    std::uint64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  };
  try {
    out.rank = card.at("rank").get<int>();
    out.version = card.at("version").get<std::string>();
    out.config_hash = number("config");
    out.node.boot_id = card.at("boot").get<std::string>();
    out.node.network_namespace = number("net");
    out.node.ipc_namespace = number("ipc");
    out.node.user = card.at("user").get<std::uint32_t>();
    out.node.override_id = card.at("node").get<std::string>();
    out.rack = card.at("rack").get<std::string>();
    out.node.shared_memory = card.at("shm").get<bool>();
    out.shared_memory = {.rank = out.rank,
                         .socket_name = card.at("socket").get<std::string>(),
                         .token = number("token")};
    ISTHMUS_ASSIGN(out.tcp, from_hex(card.at("tcp").get<std::string>()));
    for (const json& cpu : card.at("cpus")) {
      if (const auto index = cpu.get<std::size_t>(); index < out.processors.size()) {
        out.processors.set(index);
      }
    }
  } catch (const json::exception&) {
    return malformed;
  }
  return out;
}

Result<AddressBook> exchange_cards(const RankCard& mine, const std::string& tuning, int ranks,
                                   Rendezvous& store, const std::string& prefix,
                                   Deadline deadline) {
  const std::string table_key = prefix + std::string(kTable);
  std::string table;
  if (mine.rank == 0) {
    const Result<std::string> collected = collect(mine, tuning, ranks, store, prefix, deadline);
    if (!collected.ok()) {
      report_failure(collected.error(), mine.rank, store, prefix);
      return collected.error();
    }
    table = *collected;
    ISTHMUS_TRY(store.set(table_key, table));
  } else {
    ISTHMUS_TRY(store.set(card_key(prefix, mine.rank), mine.to_json()));
    ISTHMUS_ASSIGN(table, store.get(table_key, deadline));
    if (table.starts_with(kFailed)) {
      Error error = failure_from(table);
      error.message = "rank 0 reports: " + error.message;
      return error;
    }
  }
  AddressBook book;
  const json parsed = json::parse(table, nullptr, false);
  const json cards = parsed.is_object() ? parsed.value("cards", json::array()) : json::array();
  for (const json& text : cards) {
    ISTHMUS_ASSIGN(RankCard card,
                   RankCard::from_json(text.is_string() ? text.get<std::string>() : std::string()));
    book.cards.push_back(std::move(card));
  }
  if (book.cards.size() != static_cast<std::size_t>(ranks)) {
    return Error{.code = Code::kProtocol,
                 .message = fmt::format("the rendezvous lists {} ranks, expected {}",
                                        book.cards.size(), ranks)};
  }
  const json tuned = parsed.value("tuning", json());
  book.tuning = tuned.is_string() ? tuned.get<std::string>() : std::string();
  return book;
}

void report_failure(const Error& error, int rank, Rendezvous& store, const std::string& prefix) {
  const std::string key = rank == 0 ? prefix + std::string(kTable) : card_key(prefix, rank);
  [[maybe_unused]] const Status told = store.set(key, failure_text(error));
}

}  // namespace isthmus
