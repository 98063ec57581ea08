// SPDX-License-Identifier: Apache-2.0
//
// `trireme generate`: continues a prompt with the language model of a checkpoint, on one rank.
//
// generate() verifies the checkpoint, builds a replica for one sequence from the deck in the file,
// and loads the weights. Then it repeats: logits of the next token (TextDecoder), draw a token,
// emit text.
#include "trireme/train/inference/generate.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "single_rank.hpp"
#include "text_decoder.hpp"
#include "train/run/restore.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/data/labels/label_meaning.hpp"
#include "trireme/data/tokens/tokenizer.hpp"
#include "trireme/model/family.hpp"
#include "trireme/train/records/describe.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::train {
namespace {

/// Opens the tokenizer of the request, of the training set, or for bytes, in this order; bytes if
/// the checkpoint says so, or says nothing and has 256 tokens. That of the request may differ from
/// that of the checkpoint, with a warning. Throws InputError.
data::TextEncoding encoding_for(const GenerateRequest& request, const deck::Deck& deck,
                                std::int64_t vocabulary, const checkpoint::Info& info, Log& log) {
  const bool of_request = !request.tokenizer.empty();
  const data::LabelMeaning trained = meaning_of(info, request.checkpoint);
  std::string name = request.tokenizer;
  data::TextEncoding encoding;
  std::unique_ptr<data::Tokenizer>& tokenizer = encoding.tokenizer;
  if (of_request) {
    tokenizer = data::open_tokenizer(name);
    encoding.end_of_text = trained.end_of_text;
  } else if (std::filesystem::is_directory(deck.data.train)) {
    encoding = data::encoding_of_dataset(deck.data.train);
    name = deck.data.train + "/" + data::tokenizer_file_name;
  } else if (trained.tokenizer == "bytes" || (trained.tokenizer.empty() && vocabulary == 256)) {
    name = "bytes";
    tokenizer = data::open_tokenizer(name);
    encoding.end_of_text = trained.end_of_text;
  }
  validate(tokenizer != nullptr,
           "{}: its training set {} is missing, {}; give it by --tokenizer {}", request.checkpoint,
           deck.data.train,
           trained.tokenizer.empty() ? "so the tokenizer is unknown"
                                     : "with the tokenizer.model of its tokens",
           trained.tokenizer.empty() ? "(\"bytes\" or a SentencePiece model)"
                                     : "FILE, a copy of that SentencePiece model");
  validate(tokenizer->vocabulary() <= vocabulary,
           "--tokenizer: it produces tokens up to {}, but the model of {} has a vocabulary of {}",
           tokenizer->vocabulary() - 1, request.checkpoint, vocabulary);
  const data::LabelMeaning own{
      of_request ? "--tokenizer " + name : "data.train = " + deck.data.train,
      {},
      tokenizer->name(),
      data::digest_of_tokenizer(name),
      encoding.end_of_text};
  const data::MeaningComparison compared = data::compare_meanings(trained, own);
  validate(of_request || compared.difference.empty(), "{}", compared.difference);
  if (!compared.difference.empty()) log.warn("{}", compared.difference);
  return encoding;
}

/// Returns the text without the replacement characters at its end. Tokens may be parts of a
/// character, which is decoded as U+FFFD until the rest follows.
std::string_view without_incomplete_end(std::string_view text) {
  constexpr std::string_view replacement = "\xEF\xBF\xBD";
  while (text.ends_with(replacement)) text.remove_suffix(replacement.size());
  return text;
}

/// Draws one of the tokens `order` from softmax(logits / temperature) over the `top_k` most
/// probable ones; `unit` is a random number in [0, 1).
std::int32_t draw(std::span<const float> logits, std::vector<std::int32_t> order,
                  double temperature, std::int64_t top_k, double unit) {
  const auto kept = static_cast<std::size_t>(
      top_k > 0 ? std::min<std::int64_t>(top_k, static_cast<std::int64_t>(order.size()))
                : static_cast<std::int64_t>(order.size()));
  const auto more_probable = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (temperature == 0) return *std::min_element(order.begin(), order.end(), more_probable);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    more_probable);
  order.resize(kept);
  std::vector<double> weights;
  for (const std::int32_t token : order) {
    weights.push_back(std::exp((static_cast<double>(logits[static_cast<std::size_t>(token)]) -
                                logits[static_cast<std::size_t>(order[0])]) /
                               temperature));
  }
  double left = unit * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

/// Returns the deck of a checkpoint, for one rank. Throws InputError if its model generates no
/// text.
deck::Deck deck_of(const checkpoint::Contents& contents, const std::string& name, Log& log) {
  deck::Deck deck = single_rank_deck(contents, name, log);
  validate(family_of(deck.model).generates,
           "{}: its model is not a language model; text is generated from model.{}", name,
           model::kinds_with([](const model::Family& family) { return family.generates; }));
  return deck;
}

/// Returns the tokens that may be drawn. The model may know more tokens than the tokenizer; one of
/// them may be the end of a text.
std::vector<std::int32_t> drawable_tokens(std::int64_t classes, std::int64_t vocabulary,
                                          std::int64_t end_of_text) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(classes, vocabulary)));
  std::iota(tokens.begin(), tokens.end(), 0);
  if (end_of_text >= std::ssize(tokens) && end_of_text < classes)
    tokens.push_back(static_cast<std::int32_t>(end_of_text));
  return tokens;
}

}  // namespace

std::int64_t stored_vocabulary(const model::ModelOptions& model,
                               const checkpoint::Contents& contents) {
  for (const char* name : family_of(model).vocabulary_tables)
    for (const checkpoint::Contents::Entry& entry : contents.tensors)
      if (entry.path == fmt::format("model/{}", name)) return entry.shape[0];
  return 0;
}

GenerateTimes generate(const GenerateRequest& request, Log& log,
                       const std::function<void(std::string_view)>& emit) {
  validate(std::isfinite(request.temperature) && request.temperature >= 0,
           "--temperature {}: must be 0 or a positive number", request.temperature);
  // 1. Verify the checkpoint and read its deck; the layout is replaced by one rank.
  const checkpoint::Contents contents =
      read_verified_contents(comm::Communicator(), request.checkpoint);
  const deck::Deck deck = deck_of(contents, request.checkpoint, log);
  // The vocabulary, which the deck may leave to the dataset, is the height of the embedding.
  data::DatasetInfo info;
  info.vocabulary = stored_vocabulary(deck.model, contents);
  // 2. Replica options and tokens of the prompt.
  ReplicaOptions options = single_rank_options(deck, info);
  // float8 scales depend on the rows that are computed together, which the cache changes.
  options.float8 = false;
  const data::TextEncoding encoding =
      encoding_for(request, deck, options.outputs.count, contents.info, log);
  const data::Tokenizer* const tokenizer = encoding.tokenizer.get();
  std::vector<std::int32_t> text = tokenizer->encode(request.prompt);
  validate(!text.empty(), "--prompt: contains no token; give some text to continue");
  options.generation =
      plan_generation(static_cast<std::int64_t>(text.size()), request.tokens, context_length(deck));

  // 3. Build the replica and load the weights.
  SingleRank rank(options, choose_device(deck, 0), log);
  Replica& replica = rank.replica;
  load_weights(replica, contents, request.checkpoint, request.weights);

  // One token per iteration. Text is emitted once it can be decoded to whole characters.
  emit(request.prompt);
  // 4. Generate.
  TextDecoder decoder(replica);
  std::vector<float> logits(static_cast<std::size_t>(options.outputs.count));
  std::string written = tokenizer->decode(text);
  const std::int64_t end = encoding.end_of_text;
  const std::vector<std::int32_t> known =
      drawable_tokens(options.outputs.count, tokenizer->vocabulary(), end);
  GenerateTimes times;
  double began = monotonic_seconds();
  for (std::int64_t made = 0; made < request.tokens; ++made) {
    const Tensor made_logits = decoder.next_logits(text);
    copy_bytes(replica.context().stream(), logits.data(), made_logits.data,
               static_cast<std::size_t>(made_logits.bytes()));
    const double unit =
        uniform_at(random_key(request.seed, "generate"), static_cast<std::uint64_t>(made));
    const std::int32_t drawn = draw(logits, known, request.temperature, request.top_k, unit);
    const bool is_end = drawn == end;
    if (!is_end) text.push_back(drawn);
    const std::string longer = tokenizer->decode(text);
    const bool is_last = is_end || made + 1 == request.tokens;
    const std::string_view whole = is_last ? longer : without_incomplete_end(longer);
    if (whole.size() > written.size() && whole.starts_with(written)) {
      emit(whole.substr(written.size()));
      written = whole;
    }
    if (made == 0) {
      times.first_token_seconds = monotonic_seconds() - began;
      began = monotonic_seconds();
    }
    ++times.tokens;
    if (is_end) {
      log.info("the text ends after {}", counted(made, "token", "tokens"));
      break;
    }
  }
  times.later_seconds = monotonic_seconds() - began;
  return times;
}

}  // namespace trireme::train
