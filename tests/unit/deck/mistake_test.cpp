// SPDX-License-Identifier: Apache-2.0
//
// Single mistakes in a deck: each is reported with its location, its key and a remedy.
#include "support.hpp"

namespace trireme::deck {
namespace {

struct Mistake {
  const char* name;
  std::string text;      ///< a deck with one mistake
  std::string expected;  ///< the whole line, or its beginning if it ends with an ellipsis
};

/// Returns the key a.a.a... with `parts` parts.
std::string chain(int parts) {
  std::string text = "a";
  for (int i = 1; i < parts; ++i) text += ".a";
  return text;
}

class DeckMistakes : public testing::TestWithParam<Mistake> {};

TEST_P(DeckMistakes, AreNamedWithPlaceKeyAndRemedy) {
  const std::string message = error_of(GetParam().text);
  std::string expected = GetParam().expected;
  if (expected.ends_with("...")) {
    expected.resize(expected.size() - 3);
    EXPECT_TRUE(message.starts_with(expected)) << message;
    EXPECT_EQ(count_lines(message), 1) << message;
  } else {
    EXPECT_EQ(message, expected);
  }
}

// Lines 1 to 6 are the smallest deck; the added text begins in line 7.
INSTANTIATE_TEST_SUITE_P(
    Kinds, DeckMistakes,
    testing::Values(
        Mistake{"unknown_key", minimal_deck + "[optimizer]\nmomentun = 0.9\n",
                "deck.toml:8:1: [optimizer] momentun: unknown key, did you mean \"momentum\"?"},
        Mistake{"indented_key", minimal_deck + "[optimizer]\n    momentun = 0.9\n",
                "deck.toml:8:5: [optimizer] momentun: unknown key, did you mean \"momentum\"?"},
        Mistake{"unknown_key_far_from_all", minimal_deck + "[loss]\nzzz = 1\n",
                "deck.toml:8:1: [loss] zzz: unknown key; keys here are label_smoothing"},
        Mistake{"key_of_another_table", minimal_deck + "[optimizer]\nrate = 0.1\n",
                "deck.toml:8:1: [optimizer] rate: unknown key; rate is a key of [schedule]"},
        Mistake{"unknown_table", minimal_deck + "[optimiser]\nkind = \"sgd\"\n",
                "deck.toml:7:2: [optimiser]: unknown table, did you mean [optimizer]?"},
        Mistake{"key_without_table", "seed = 3\n" + minimal_deck,
                "deck.toml:1:1: [seed]: unknown table or key; seed is a key of [run]"},
        Mistake{"unknown_table_inside", minimal_deck + "[data.augmentation]\nflip = true\n",
                "deck.toml:7:7: [data] augmentation: unknown key, did you mean \"augment\"?"},
        Mistake{"string_for_number", minimal_deck + "[batch]\nglobal = \"256\"\n",
                "deck.toml:8:10: [batch] global: must be an integer, not a string (\"256\")"},
        Mistake{"fraction_for_integer", minimal_deck + "[batch]\nglobal = 256.5\n",
                "deck.toml:8:10: [batch] global: must be an integer, not a number with a fraction "
                "(256.5)"},
        Mistake{"number_for_flag", minimal_deck + "[run2]\n",
                "deck.toml:7:2: [run2]: unknown table, did you mean [run]?"},
        Mistake{"number_for_duration", minimal_deck + "[checkpoint]\nevery = 5\n",
                "deck.toml:8:9: [checkpoint] every: must be a duration in quotes, as in \"10 "
                "epochs\", not an integer (5)"},
        Mistake{"value_for_table", "batch = 256\n" + minimal_deck,
                "deck.toml:1:9: [batch]: must be a table [batch], not an integer (256)"},
        Mistake{"out_of_range", minimal_deck + "[optimizer]\nmomentum = 1.5\n",
                "deck.toml:8:12: [optimizer] momentum: 1.5 is out of range; must be at least 0 and "
                "below 1"},
        Mistake{
            "ema_of_nothing_new", minimal_deck + "[optimizer]\nema = 1.0\n",
            "deck.toml:8:7: [optimizer] ema: 1 is out of range; must be at least 0 and below 1"},
        Mistake{
            "negative_ema", minimal_deck + "[optimizer]\nema = -0.1\n",
            "deck.toml:8:7: [optimizer] ema: -0.1 is out of range; must be at least 0 and below 1"},
        Mistake{"negative_clip_value", minimal_deck + "[optimizer]\nclip_value = -1\n",
                "deck.toml:8:14: [optimizer] clip_value: -1 is out of range; must be at least 0"},
        Mistake{"groups_as_table", minimal_deck + "[optimizer.groups]\nmatch = \"*\"\n",
                "deck.toml:7:1: [optimizer] groups: must be a list of tables, as in [{ match = "
                "\"fc.*\", rate_ratio = 10, decay = 0 }], not a table"},
        Mistake{"group_without_match", minimal_deck + "[[optimizer.groups]]\nfrozen = true\n",
                "deck.toml:7:1: [optimizer] groups: group 1: needs match, a pattern of names of "
                "weights, as in match = \"fc.*\""},
        Mistake{"group_with_unknown_key",
                minimal_deck + "[[optimizer.groups]]\nmatch = \"*\"\nrate = 1\n",
                "deck.toml:7:1: [optimizer] groups: group 1: \"rate\": unknown key; the keys are "
                "\"match\", \"rate_ratio\", \"decay\", \"frozen\""},
        Mistake{"group_of_ratio_zero",
                minimal_deck + "[optimizer]\ngroups = [{ match = \"a\" }, { match = \"b\", "
                               "rate_ratio = 0 }]\n",
                "deck.toml:8:10: [optimizer] groups: group 2: rate_ratio = 0 is out of range; must "
                "be more than 0 and at most 1000000; frozen = true keeps the weights as they are"},
        Mistake{"group_of_negative_decay",
                minimal_deck + "[optimizer]\ngroups = [{ match = \"a\", decay = -0.5 }]\n",
                "deck.toml:8:10: [optimizer] groups: group 1: decay = -0.5 is out of range; must "
                "be at least 0"},
        Mistake{"frozen_group_with_rate",
                minimal_deck + "[optimizer]\ngroups = [{ match = \"a\", rate_ratio = 2, frozen = "
                               "true }]\n",
                "deck.toml:8:10: [optimizer] groups: group 1: rate_ratio has no effect beside "
                "frozen = true, which keeps the weights; remove one of them"},
        Mistake{"group_that_is_a_name", minimal_deck + "[optimizer]\ngroups = [\"fc.*\"]\n",
                "deck.toml:8:10: [optimizer] groups: group 1 must be a table { match = \"fc.*\", "
                "rate_ratio = 10, decay = 0 }, not a string (\"fc.*\")"},
        Mistake{"zero_batch", minimal_deck + "[batch]\nmicro = 0\n",
                "deck.toml:8:9: [batch] micro: 0 is out of range; must be at least 1 and at most "
                "1073741824"},
        Mistake{"not_finite", minimal_deck + "[schedule]\nrate = nan\n",
                "deck.toml:8:8: [schedule] rate: nan is out of range; must be more than 0"},
        Mistake{
            "wrong_choice", minimal_deck + "[optimizer]\nkind = \"adam\"\n",
            "deck.toml:8:8: [optimizer] kind: \"adam\" is not a choice, did you mean \"adamw\"? "
            "choices: \"sgd\", \"adamw\", \"lars\", \"lamb\""},
        Mistake{
            "wrong_depth", "[run]\nname = \"a\"\n[model]\ndepth = 51\n[data]\ntrain = \"t\"\n",
            "deck.toml:4:9: [model] depth: 51 is not a choice, the nearest is 50; choices: 8, 14, "
            "..."},
        Mistake{"widths_of_resnet",
                "[run]\nname = \"a\"\n[model]\ndepth = 8\nwidths = [8]\n[data]\ntrain = \"t\"\n",
                "deck.toml:5:10: [model] widths: belongs to kind = \"mlp\"; remove it"},
        Mistake{
            "trust_coefficient_of_sgd", minimal_deck + "[optimizer]\ntrust_coefficient = 0.001\n",
            "deck.toml:8:21: [optimizer] trust_coefficient: belongs to kind = \"lars\"; remove it"},
        Mistake{"stem_of_mlp",
                "[run]\nname = \"a\"\n[model]\nkind = \"mlp\"\nwidths = []\nstem = "
                "\"small\"\n[data]\ntrain = \"t\"\n",
                "deck.toml:6:8: [model] stem: belongs to kind = \"resnet\"; remove it"},
        Mistake{"misspelt_unit", minimal_deck + "[checkpoint]\nevery = \"1 epoc\"\n",
                "deck.toml:8:9: [checkpoint] every: \"1 epoc\": unknown unit \"epoc\", did you "
                "mean \"epoch\"?"},
        Mistake{"time_for_warmup", minimal_deck + "[schedule]\nwarmup = \"5 minutes\"\n",
                "deck.toml:8:10: [schedule] warmup: \"5 minutes\": must be counted in epochs, "
                "steps or samples, not in time"},
        Mistake{"epochs_for_walltime",
                "[run]\nname = \"a\"\nwalltime = \"5 epochs\"\n[model]\ndepth = 8\n[data]\ntrain = "
                "\"t\"\n",
                "deck.toml:3:12: [run] walltime: \"5 epochs\": must be a time (seconds, minutes, "
                "hours, days)..."},
        Mistake{"zero_duration", minimal_deck + "[monitor]\nevery = \"0 steps\"\n",
                "deck.toml:8:9: [monitor] every: \"0 steps\": must be more than 0"},
        Mistake{"zero_length", minimal_deck + "[schedule]\nlength = \"0 epochs\"\n",
                "deck.toml:8:10: [schedule] length: \"0 epochs\": must be more than 0"},
        Mistake{"endless_length", minimal_deck + "[schedule]\nlength = \"1e30 epochs\"\n",
                "deck.toml:8:10: [schedule] length: \"1e30 epochs\": is too long; ..."},
        Mistake{"huge_batch", minimal_deck + "[batch]\nglobal = 9223372036854775807\n",
                "deck.toml:8:10: [batch] global: 9223372036854775807 is out of range; must be at "
                "least 1 and at most 1073741824"},
        Mistake{"huge_extent",
                "[run]\nname = \"a\"\n[model]\nkind = \"mlp\"\nwidths = [1048577]\n[data]\ntrain = "
                "\"t\"\n",
                "deck.toml:5:10: [model] widths: 1048577 is out of range; every extent must be at "
                "least 1 and at most 1048576"},
        Mistake{"deep_header", minimal_deck + "[" + chain(200000) + "]\n",
                "deck.toml:7: a key of more than 64 parts; ..."},
        Mistake{"deep_key", minimal_deck + chain(65) + " = 1\n",
                "deck.toml:7: a key of more than 64 parts; ..."},
        Mistake{"deep_key_after_strings",
                minimal_deck + "x = ['a\"', \"\\\"\", \"\"\"\n\"\"\", {" + chain(65) + " = 1}]\n",
                "deck.toml:8: a key of more than 64 parts; ..."},
        Mistake{"deep_array", minimal_deck + "x = " + std::string(100000, '[') + "\n",
                "deck.toml:7:..."},
        Mistake{"zero_character", minimal_deck + "test = \"a\\u0000b\"\n",
                "deck.toml:7:8: [data] test: must not contain the character U+0000"},
        Mistake{"run_name", "[run]\nname = \"my run\"\n[model]\ndepth = 8\n[data]\ntrain = \"t\"\n",
                "deck.toml:2:8: [run] name: \"my run\": a run's name may contain only letters, "
                "digits, ..."},
        Mistake{"run_name_as_folder",
                "[run]\nname = \"..\"\n[model]\ndepth = 8\n[data]\ntrain = \"t\"\n",
                "deck.toml:2:8: [run] name: \"..\": ..."},
        Mistake{"missing_key", "[run]\nname = \"a\"\n[model]\ndepth = 8\n[data]\n",
                "deck.toml:5:1: [data] train: missing; name the folder of the training set..."},
        Mistake{"missing_table", "[run]\nname = \"a\"\n[data]\ntrain = \"t\"\n",
                "deck.toml: [model] depth: missing; choose for instance..."},
        Mistake{"syntax", minimal_deck + "[batch\nglobal = 256\n",
                "deck.toml:7:7: not valid TOML: ..."},
        Mistake{"same_key_twice", minimal_deck + "[batch]\nmicro = 4\nmicro = 8\n",
                "deck.toml:9:..."},
        Mistake{"normalize_lengths",
                minimal_deck + "[data.augment]\nnormalize = { mean = [0.1, 0.2], std = [1.0] }\n",
                "deck.toml:8:13: [data.augment] normalize: mean has 2 numbers, std has 1..."},
        Mistake{
            "normalize_scalar",
            minimal_deck + "[data.augment]\nnormalize = { mean = 0.5, std = 0.25 }\n",
            "deck.toml:8:13: [data.augment] normalize: mean must be a list; write mean = [0.5], "
            "which is for all channels"},
        Mistake{"normalize_scalar_std",
                minimal_deck + "[data.augment]\nnormalize = { mean = [0.5], std = 1 }\n",
                "deck.toml:8:13: [data.augment] normalize: std must be a list; write std = [1], "
                "which is for all channels"},
        Mistake{"normalize_without_std",
                minimal_deck + "[data.augment]\nnormalize = { mean = [0.5] }\n",
                "deck.toml:8:13: [data.augment] normalize: needs std = [..], one number per "
                "channel or one for all"},
        Mistake{"normalize_zero",
                minimal_deck + "[data.augment]\nnormalize = { mean = [0.1], std = [0.0] }\n",
                "deck.toml:8:13: [data.augment] normalize: std = 0 is out of range..."},
        Mistake{"normalize_overflow",
                minimal_deck + "[data.augment]\nnormalize = { mean = [0.1], std = [1e-40] }\n",
                "deck.toml:8:13: [data.augment] normalize: std = 1e-40 is out of range; must be "
                "from 1e-30 to 1e30"},
        Mistake{"normalize_key",
                minimal_deck + "[data.augment]\nnormalize = { mean = [0.1], sd = [1.0] }\n",
                "deck.toml:8:13: [data.augment] normalize: \"sd\": unknown key..."},
        Mistake{
            "crop_without_size",
            minimal_deck + "[data.augment]\nrandom_resized_crop = { scale = [0.1, 1.0] }\n",
            "deck.toml:8:23: [data.augment] random_resized_crop: needs size, a number of pixels"},
        Mistake{"crop_of_a_number", minimal_deck + "[data.augment]\nrandom_resized_crop = 224\n",
                "deck.toml:8:23: [data.augment] random_resized_crop: must be a table { size = 224, "
                "scale..."},
        Mistake{"crop_size_of_a_fraction",
                minimal_deck + "[data.augment]\nrandom_resized_crop = { size = 1.5 }\n",
                "deck.toml:8:23: [data.augment] random_resized_crop: size must be a whole number"},
        Mistake{"crop_key",
                minimal_deck +
                    "[data.augment]\nrandom_resized_crop = { size = 224, area = [0.1, 1.0] }\n",
                "deck.toml:8:23: [data.augment] random_resized_crop: \"area\": unknown key; the "
                "keys are \"size\", \"scale\", \"ratio\""},
        Mistake{"crop_size", minimal_deck + "[data.augment]\nrandom_resized_crop = { size = 0 }\n",
                "deck.toml:8:23: [data.augment] random_resized_crop: size = 0 is out of range..."},
        Mistake{"crop_scale",
                minimal_deck +
                    "[data.augment]\nrandom_resized_crop = { size = 224, scale = [0.5, 0.1] }\n",
                "deck.toml:8:23: [data.augment] random_resized_crop: scale = [0.5, 0.1] is out of "
                "range..."},
        Mistake{"crop_scale_above_one",
                minimal_deck +
                    "[data.augment]\nrandom_resized_crop = { size = 224, scale = [0.5, 2] }\n",
                "deck.toml:8:23: [data.augment] random_resized_crop: scale = [0.5, 2] is out of "
                "range; both must be at least 1e-06 and at most 1..."},
        Mistake{"crop_ratio",
                minimal_deck + "[data.augment]\nrandom_resized_crop = { size = 224, ratio = 1 }\n",
                "deck.toml:8:23: [data.augment] random_resized_crop: ratio must be two numbers..."},
        Mistake{"evaluation_crop",
                minimal_deck + "[data.augment]\nevaluate = { resize = 224, crop = 256 }\n",
                "deck.toml:8:12: [data.augment] evaluate: crop = 256 is more than resize = 224..."},
        Mistake{"evaluation_without_resize",
                minimal_deck + "[data.augment]\nevaluate = { crop = 256 }\n",
                "deck.toml:8:12: [data.augment] evaluate: needs resize, a number of pixels"},
        Mistake{"jitter_of_a_number", minimal_deck + "[data.augment]\ncolor_jitter = 0.4\n",
                "deck.toml:8:16: [data.augment] color_jitter: must be a table { brightness = "
                "0.4, ..."},
        Mistake{"jitter_of_nothing", minimal_deck + "[data.augment]\ncolor_jitter = {}\n",
                "deck.toml:8:16: [data.augment] color_jitter: {} changes nothing, because keys "
                "that are left out are 0; give one or more, as in { brightness = 0.4, contrast = "
                "0.4, saturation = 0.4, hue = 0.1 }, or false to turn it off"},
        Mistake{"jitter_key", minimal_deck + "[data.augment]\ncolor_jitter = { gamma = 0.4 }\n",
                "deck.toml:8:16: [data.augment] color_jitter: \"gamma\": unknown key; the keys are "
                "\"brightness\", \"contrast\", \"saturation\", \"hue\""},
        Mistake{"jitter_hue", minimal_deck + "[data.augment]\ncolor_jitter = { hue = 0.6 }\n",
                "deck.toml:8:16: [data.augment] color_jitter: hue = 0.6 is out of range; must be "
                "at least 0 and at most 0.5"},
        Mistake{"jitter_negative",
                minimal_deck + "[data.augment]\ncolor_jitter = { contrast = -0.1 }\n",
                "deck.toml:8:16: [data.augment] color_jitter: contrast = -0.1 is out of range..."},
        Mistake{"jitter_infinite",
                minimal_deck + "[data.augment]\ncolor_jitter = { saturation = inf }\n",
                "deck.toml:8:16: [data.augment] color_jitter: saturation = inf is out of range..."},
        Mistake{"jitter_of_a_word",
                minimal_deck + "[data.augment]\ncolor_jitter = { brightness = \"0.4\" }\n",
                "deck.toml:8:16: [data.augment] color_jitter: brightness must be a number"},
        Mistake{"rand_augment_count",
                minimal_deck + "[data.augment]\nrand_augment = { count = 0 }\n",
                "deck.toml:8:16: [data.augment] rand_augment: count = 0 is out of range; must be "
                "at least 1..."},
        Mistake{"rand_augment_magnitude",
                minimal_deck + "[data.augment]\nrand_augment = { magnitude = 31 }\n",
                "deck.toml:8:16: [data.augment] rand_augment: magnitude = 31 is out of range; must "
                "be at least 0 and at most 30"},
        Mistake{"rand_augment_fraction",
                minimal_deck + "[data.augment]\nrand_augment = { magnitude = 4.5 }\n",
                "deck.toml:8:16: [data.augment] rand_augment: magnitude must be a whole number"},
        Mistake{"rand_augment_key", minimal_deck + "[data.augment]\nrand_augment = { ops = 2 }\n",
                "deck.toml:8:16: [data.augment] rand_augment: \"ops\": unknown key; the keys are "
                "\"count\", \"magnitude\""},
        Mistake{"misspelt_shard", minimal_deck + "[parallel]\nshard = \"gradient\"\n",
                "deck.toml:8:9: [parallel] shard: \"gradient\" is not a choice, did you mean "
                "\"gradients\"?..."},
        Mistake{"keep_every_of_a_time", minimal_deck + "[checkpoint]\nkeep_every = \"1 hour\"\n",
                "deck.toml:8:14: [checkpoint] keep_every: ..."},
        Mistake{"keep_every_of_tokens", minimal_deck + "[checkpoint]\nkeep_every = \"1M tokens\"\n",
                "deck.toml:8:14: [checkpoint] keep_every: \"1000000 tokens\": a duration in tokens "
                "needs a token dataset..."},
        Mistake{"negative_mixup", minimal_deck + "[data.augment]\nmixup = -0.2\n",
                "deck.toml:8:9: [data.augment] mixup: -0.2 is out of range; must be at least 0.001 "
                "and at most 1000"},
        Mistake{"huge_cutmix", minimal_deck + "[data.augment]\ncutmix = 1e4\n",
                "deck.toml:8:10: [data.augment] cutmix: 10000 is out of range..."},
        Mistake{"infinite_mixup", minimal_deck + "[data.augment]\nmixup = inf\n",
                "deck.toml:8:9: [data.augment] mixup: inf is out of range..."},
        Mistake{"true_cutmix", minimal_deck + "[data.augment]\ncutmix = true\n",
                "deck.toml:8:10: [data.augment] cutmix: must be a number..."},
        Mistake{"mixup_of_tokens", minimal_gpt_deck + "[data.augment]\nmixup = 0.2\n",
                "deck.toml:8:9: [data.augment] mixup: belongs to image models (model.kind = "
                "\"resnet\" or \"mlp\"); remove it"},
        Mistake{"erase_of_a_number", minimal_deck + "[data.augment]\nerase = 0.5\n",
                "deck.toml:8:9: [data.augment] erase: must be a table { probability = 0.5, scale = "
                "[0.02, 0.33], ratio = [0.3, 3.3] }..."},
        Mistake{"erase_of_unknown_key", minimal_deck + "[data.augment]\nerase = { value = 0 }\n",
                "deck.toml:8:9: [data.augment] erase: \"value\": unknown key; the keys are "
                "\"probability\", \"scale\", \"ratio\""},
        Mistake{"erase_of_much", minimal_deck + "[data.augment]\nerase = { probability = 1.5 }\n",
                "deck.toml:8:9: [data.augment] erase: probability = 1.5 is out of range; must be "
                "at least 0 and at most 1"},
        Mistake{"erase_of_a_word",
                minimal_deck + "[data.augment]\nerase = { probability = \"half\" }\n",
                "deck.toml:8:9: [data.augment] erase: probability must be a number"},
        Mistake{"erase_of_more_than_all",
                minimal_deck + "[data.augment]\nerase = { scale = [0.1, 1.5] }\n",
                "deck.toml:8:9: [data.augment] erase: scale = [0.1, 1.5] is out of range..."},
        Mistake{"erase_of_no_ratio", minimal_deck + "[data.augment]\nerase = { ratio = [0, 1] }\n",
                "deck.toml:8:9: [data.augment] erase: ratio = [0, 1] is out of range..."},
        Mistake{"layers_of_resnet",
                "[run]\nname = \"a\"\n[model]\ndepth = 8\nlayers = 4\n[data]\ntrain = \"t\"\n",
                "deck.toml:5:10: [model] layers: belongs to kind = \"gpt\"; remove it"},
        Mistake{"depth_of_gpt",
                "[run]\nname = \"a\"\n[model]\nkind = \"gpt\"\ndepth = 8\n[data]\ntrain = \"t\"\n",
                "deck.toml:5:9: [model] depth: belongs to kind = \"resnet\"; remove it"},
        Mistake{"width_of_mlp",
                "[run]\nname = \"a\"\n[model]\nkind = \"mlp\"\nwidths = []\nwidth = "
                "8\n[data]\ntrain = \"t\"\n",
                "deck.toml:6:9: [model] width: belongs to kind = \"resnet\" or \"gpt\"; remove it"},
        Mistake{
            "norm_of_resnet_for_gpt",
            "[run]\nname = \"a\"\n[model]\nkind = \"gpt\"\nnorm = \"batch\"\n[data]\ntrain = "
            "\"t\"\n",
            "deck.toml:5:8: [model] norm: \"batch\" is not a choice; choices: \"layer\", \"rms\""},
        Mistake{
            "norm_of_gpt_for_resnet",
            "[run]\nname = \"a\"\n[model]\ndepth = 8\nnorm = \"rms\"\n[data]\ntrain = \"t\"\n",
            "deck.toml:5:8: [model] norm: \"rms\" is not a choice; choices: \"batch\", \"group\""},
        Mistake{"norm_of_a_misspelt_kind",
                "[run]\nname = \"a\"\n[model]\nkind = \"gtp\"\nnorm = \"rms\"\nlayers = "
                "2\n[data]\ntrain = \"t\"\n",
                "deck.toml:4:8: [model] kind: \"gtp\" is not a choice, did you mean \"gpt\"?..."},
        Mistake{
            "misspelt_positions",
            "[run]\nname = \"a\"\n[model]\nkind = \"gpt\"\npositions = "
            "\"ropes\"\n[data]\ntrain = \"t\"\n",
            "deck.toml:5:13: [model] positions: \"ropes\" is not a choice, did you mean \"rope\"? "
            "choices: \"learned\", \"rope\""},
        Mistake{
            "zero_kv_heads",
            "[run]\nname = \"a\"\n[model]\nkind = \"gpt\"\nkv_heads = 0\n[data]\ntrain = \"t\"\n",
            "deck.toml:5:12: [model] kv_heads: 0 is out of range; must be at least 1..."},
        Mistake{
            "dropout_of_all",
            "[run]\nname = \"a\"\n[model]\nkind = \"gpt\"\ndropout = 1.0\n[data]\ntrain = \"t\"\n",
            "deck.toml:5:11: [model] dropout: 1 is out of range; must be at least 0 and below 1"},
        Mistake{"flip_of_tokens", minimal_gpt_deck + "[data.augment]\nflip = false\n",
                "deck.toml:8:8: [data.augment] flip: belongs to image models (model.kind = "
                "\"resnet\" or \"mlp\"); remove it"},
        Mistake{
            "beta1_of_sgd", minimal_deck + "[optimizer]\nbeta1 = 0.9\n",
            "deck.toml:8:9: [optimizer] beta1: belongs to kind = \"adamw\" or \"lamb\"; remove it"},
        Mistake{"momentum_of_lamb", minimal_deck + "[optimizer]\nkind = \"lamb\"\nmomentum = 0.9\n",
                "deck.toml:9:12: [optimizer] momentum: belongs to kind = \"sgd\" or \"lars\"; "
                "remove it"},
        Mistake{"zero_tensor", minimal_gpt_deck + "[parallel]\ntensor = 0\n",
                "deck.toml:8:10: [parallel] tensor: 0 is out of range; must be at least 1..."},
        Mistake{
            "misspelt_schedule", minimal_gpt_deck + "[parallel]\npipeline_schedule = \"1f1\"\n",
            "deck.toml:8:21: [parallel] pipeline_schedule: \"1f1\" is not a choice, did you mean "
            "\"1f1b\"? choices: \"gpipe\", \"1f1b\", \"interleaved\""},
        Mistake{"number_for_recompute", minimal_deck + "[parallel]\nrecompute = 2\n",
                "deck.toml:8:13: [parallel] recompute: must be \"none\", \"all\" or \"every n\" "
                "(each n-th block), as in \"every 2\", not an integer (2)"},
        Mistake{"recompute_of_no_block", minimal_deck + "[parallel]\nrecompute = \"every 0\"\n",
                "deck.toml:8:13: [parallel] recompute: \"every 0\": must be \"none\", \"all\" or "
                "\"every n\"..."},
        Mistake{"recompute_of_a_word", minimal_deck + "[parallel]\nrecompute = \"every two\"\n",
                "deck.toml:8:13: [parallel] recompute: \"every two\": must be \"none\", \"all\" or "
                "\"every n\"..."},
        Mistake{"trace_without_end", minimal_deck + "[monitor]\ntrace = \"10\"\n",
                "deck.toml:8:9: [monitor] trace: \"10\": must be a range of steps, counted "
                "from 1, as in \"10..12\", or \"none\""},
        Mistake{"trace_backwards", minimal_deck + "[monitor]\ntrace = \"12..10\"\n",
                "deck.toml:8:9: [monitor] trace: \"12..10\": ends before it begins; must be as "
                "\"10..12\""},
        Mistake{"trace_from_step_zero", minimal_deck + "[monitor]\ntrace = \"0..3\"\n",
                "deck.toml:8:9: [monitor] trace: \"0..3\": must be a range of steps, counted "
                "from 1..."},
        Mistake{"trace_as_number", minimal_deck + "[monitor]\ntrace = 10\n",
                "deck.toml:8:9: [monitor] trace: must be a range of steps in quotes, as in "
                "\"10..12\", or \"none\", not an integer (10)"},
        Mistake{"tokens_for_images", minimal_deck + "[monitor]\nevery = \"1M tokens\"\n",
                "deck.toml:8:9: [monitor] every: \"1000000 tokens\": a duration in tokens needs a "
                "token "
                "dataset (model.kind = \"gpt\"); write epochs, steps or samples"},
        Mistake{"not_there_model",
                "[run]\nname = \"a\"\n[model]\nkind = \"vit\"\npatch = 12\nwidth = "
                "768\n[data]\ntrain = \"t\"\n",
                "deck.toml:4:8: [model] kind: \"vit\": not available in this version of Trireme "
                "(0.1); available: \"resnet\", \"mlp\", \"gpt\""},
        Mistake{"float8_of_images", minimal_deck + "[precision]\ncompute = \"float8\"\n",
                "deck.toml:8:11: [precision] compute: \"float8\" is available for model.kind = "
                "\"gpt\" only, not for image models; use \"bfloat16\""},
        Mistake{"not_there_reduce", minimal_deck + "[precision]\nreduce = \"float16\"\n",
                "deck.toml:8:10: [precision] reduce: \"float16\": not available in this version of "
                "Trireme (0.1); available: \"float32\", \"bfloat16\""},
        Mistake{"reduce_of_averages",
                minimal_deck +
                    "[parallel]\nsync = \"every 4 steps\"\n[precision]\nreduce = \"bfloat16\"\n",
                "deck.toml:10:10: [precision] reduce: applies to sums of gradients, but "
                "parallel.sync = \"every 4 steps\" has none: it averages weights "
                "in float32; remove it"},
        Mistake{
            "misspelt_reduce", minimal_deck + "[precision]\nreduce = \"bf16\"\n",
            "deck.toml:8:10: [precision] reduce: \"bf16\" is not a choice; choices: \"float32\", "
            "\"bfloat16\""},
        Mistake{"loss_scale_of_bfloat16",
                minimal_deck +
                    "[precision]\ncompute = \"bfloat16\"\n[precision.loss_scale]\ninitial = 1024\n",
                "deck.toml:10:11: [precision.loss_scale] initial: belongs to precision.compute = "
                "\"float16\"; remove it"},
        Mistake{"loss_scale_between_powers",
                minimal_deck +
                    "[precision]\ncompute = \"float16\"\n[precision.loss_scale]\ninitial = 1000\n",
                "deck.toml:10:11: [precision.loss_scale] initial: 1000 is not a power of two, so "
                "scaling would round numbers; use 512 or 1024"},
        Mistake{"loss_scale_below_one",
                minimal_deck +
                    "[precision]\ncompute = \"float16\"\n[precision.loss_scale]\ninitial = 0.5\n",
                "deck.toml:10:11: [precision.loss_scale] initial: 0.5 is out of range; must be at "
                "least 1"},
        Mistake{"loss_scale_that_does_not_grow",
                minimal_deck +
                    "[precision]\ncompute = \"float16\"\n[precision.loss_scale]\ngrowth = 1\n",
                "deck.toml:10:10: [precision.loss_scale] growth: 1 is out of range; must be more "
                "than 1..."},
        Mistake{
            "loss_scale_that_does_not_fall",
            minimal_deck +
                "[precision]\ncompute = \"float16\"\n[precision.loss_scale]\nbackoff = 1.0\n",
            "deck.toml:10:11: [precision.loss_scale] backoff: 1 is out of range; must be more than "
            "0 and below 1"},
        Mistake{"loss_scale_backoff_between_powers",
                minimal_deck +
                    "[precision]\ncompute = \"float16\"\n[precision.loss_scale]\nbackoff = 0.6\n",
                "deck.toml:10:11: [precision.loss_scale] backoff: 0.6 is not a power of two, so "
                "scaling would round numbers; use 0.5"},
        Mistake{
            "loss_scale_at_once",
            minimal_deck +
                "[precision]\ncompute = \"float16\"\n[precision.loss_scale]\ninterval = 0\n",
            "deck.toml:10:12: [precision.loss_scale] interval: 0 is out of range; must be at least "
            "1..."},
        Mistake{"tfloat32_on_the_cpu",
                "[run]\nname = \"a\"\ndevice = \"cpu\"\n[model]\ndepth = 8\n[data]\ntrain = "
                "\"t\"\n[precision]\ncompute = \"tfloat32\"\n",
                "deck.toml:9:11: [precision] compute: \"tfloat32\" needs the tensor cores of a "
                "GPU, but run.device = \"cpu\"; use \"float32\""},
        Mistake{"offload_of_what", minimal_deck + "[parallel]\noffload = [\"optimiser\"]\n",
                "deck.toml:8:11: [parallel] offload: \"optimiser\" is not a choice, did you mean "
                "\"optimizer\"?..."},
        Mistake{"offload_no_list", minimal_deck + "[parallel]\noffload = \"optimizer\"\n",
                "deck.toml:8:11: [parallel] offload: must be a list of \"optimizer\", "
                "\"parameters\", \"activations\", as in [\"optimizer\"]..."},
        Mistake{"sync_without_number", minimal_deck + "[parallel]\nsync = \"every steps\"\n",
                "deck.toml:8:8: [parallel] sync: \"every steps\": must be \"step\", \"delayed\" or "
                "\"every n steps\", as in \"every 8 steps\""},
        Mistake{"batch_norm_of_one_rank", minimal_deck + "[parallel]\nsync_batch_norm = 1\n",
                "deck.toml:8:19: [parallel] sync_batch_norm: 1 is out of range; must be true, "
                "false, or 2 to 1048576"},
        Mistake{"batch_norm_of_a_word", minimal_deck + "[parallel]\nsync_batch_norm = \"all\"\n",
                "deck.toml:8:19: [parallel] sync_batch_norm: must be true, false or an integer..."},
        Mistake{"sync_every_zero", minimal_deck + "[parallel]\nsync = \"every 0 steps\"\n",
                "deck.toml:8:8: [parallel] sync: \"every 0 steps\": must be..."}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(DeckMistakes, AllComeInOneGoInTheOrderOfTheDeck) {
  const std::string message = error_of(R"([run]
name = "a b"
sed = 1
[schedule]
rate = "fast"
warmup = "3 parsecs"
[optimizer]
kind = "sgdd"
momentum = 2
[model]
depth = 8
[data]
train = "t"
workers = 0
)");
  EXPECT_EQ(count_lines(message), 7) << message;
  std::size_t before = 0;
  for (const char* place : {"deck.toml:2:", "deck.toml:3:", "deck.toml:5:", "deck.toml:6:",
                            "deck.toml:8:", "deck.toml:14:"}) {
    const std::size_t found = message.find(place);
    ASSERT_NE(found, std::string::npos) << place << " in\n" << message;
    EXPECT_GE(found, before) << message;
    before = found;
  }
}

TEST(DeckMistakes, WrongInputIsExitCode2) {
  try {
    parse("[run]\n", "deck.toml");
    FAIL() << "a deck without a name was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::wrong_input);
  }
}

}  // namespace
}  // namespace trireme::deck
