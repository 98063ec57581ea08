// SPDX-License-Identifier: Apache-2.0
//
// Declares the keys of the tables [data] and [data.augment], and the rules between them.
#include "trireme/data/keys.hpp"

#include <fmt/format.h>

#include "data/arrays/array_fields.hpp"
#include "data/images/augment_fields.hpp"

namespace trireme::data {

using namespace keys;

namespace {

void visit_augment(Visitor& v, const AppliesTo& images, AugmentOptions& augment) {
  v.table("data.augment");
  v.field(
      {"normalize",
       "Images: subtracts mean and divides by std, one number per channel or one for all, after "
       "scaling integers to 0..1.",
       images},
      normalize(augment.mean, augment.std));
  v.field({"random_crop",
           "Images: shifts each training image randomly by up to this many pixels; 0 turns it off.",
           images},
          random_crop(augment.random_crop));
  v.field({"flip", "Images: mirrors each training image with probability 1/2.", images},
          flag(augment.flip));
  v.field(
      {"random_resized_crop",
       "Images: trains on a random rectangle of each image, scaled to size x size pixels.", images},
      random_resized_crop(augment.random_resized_crop));
  v.field({"evaluate",
           "Images: scales the shorter side of images of an evaluation to resize, and takes the "
           "center of crop x crop.",
           images},
          evaluation_crop(augment.evaluate));
  v.field({"color_jitter",
           "Images: changes brightness, contrast, saturation and hue of each training image by "
           "random amounts.",
           images},
          color_jitter(augment.color_jitter));
  v.field({"rand_augment",
           "Images: changes each training image by count operations of RandAugment.", images},
          rand_augment(augment.rand_augment));
  v.field({"erase",
           "Images: sets a random rectangle of a training image to 0, with the given probability.",
           images},
          random_erasing(augment.erase));
  v.field({"mixup",
           "Images: blends each training image and label with those of a partner, by a weight "
           "from Beta(mixup, mixup).",
           images},
          mixing_alpha(augment.mixing.mixup));
  v.field({"cutmix",
           "Images: pastes a rectangle of a partner into each training image, of a size from "
           "Beta(cutmix, cutmix).",
           images},
          mixing_alpha(augment.mixing.cutmix));
}

}  // namespace

void visit_keys(Visitor& v, const AppliesTo& images, const AppliesTo& maps, DataOptions& data) {
  v.table("data");
  v.field({"train",
           "Names the training set, a folder of *.h5 shards, or files and patterns with data.hdf5; "
           "required.",
           {},
           "name the folder of the training set, as in train = \"data/fashion/train\" (trireme "
           "shard makes one)"},
          text(data.train));
  v.field({"validation", "Names the set that is evaluated during training; optional."},
          optional_text(data.validation));
  v.field({"test", "Names the test set, evaluated once at the end of the run; optional."},
          optional_text(data.test));
  v.field({"samples",
           "Sets the number of training samples that are used, chosen once at random; 0: all."},
          integer(data.samples, at_least(0)));
  v.field(
      {"shuffle",
       "Selects the order of samples: full, blocks (sequential reads of shuffled blocks) or none."},
      choice<Shuffle>(
          data.shuffle,
          {{"full", Shuffle::full}, {"blocks", Shuffle::blocks}, {"none", Shuffle::none}}));
  const AppliesTo blocks{data.shuffle == Shuffle::blocks, "shuffle = \"blocks\"", "data.shuffle"};
  v.field({"shuffle_block",
           "shuffle = \"blocks\": sets the number of adjacent samples that stay together.", blocks},
          integer(data.shuffle_block, at_least(1)));
  v.field(
      {"shuffle_window",
       "shuffle = \"blocks\": sets the number of samples among which single samples are permuted.",
       blocks},
      integer(data.shuffle_window, at_least(1)));
  v.field({"workers",
           "Sets the number of reader threads per rank; auto: the cores that computation leaves "
           "free, 1 to 4."},
          automatic_integer(data.workers, between(1, 1024)));
  v.field({"prefetch", "Sets the number of micro-batches that each rank reads ahead."},
          integer(data.prefetch, between(1, 1024)));
  v.field({"verify",
           "Sets the share of the checksum blocks that training compares in each epoch; 0 turns it "
           "off."},
          real(data.verify, between(0, 1)));
  v.field({"drop_last",
           "Skips the last samples of an epoch that do not fill a step; false fills the step from "
           "the next epoch."},
          flag(data.drop_last));
  v.field({"decode",
           "Images: selects how training decodes JPEG files: exact, or fast (at the lowest "
           "resolution that random_resized_crop allows).",
           images},
          choice<Decoding>(data.decode, {{"exact", Decoding::exact}, {"fast", Decoding::fast}}));
  visit_arrays(v, images, maps, data.hdf5);
  visit_augment(v, images, data.augment);
}

void visit_keys(Visitor& v, const AppliesTo& images, TargetOptions& target) {
  v.table("target");
  std::vector<std::pair<std::string, AnswerKind>> kinds;
  for (const Answer& answer : target_answers()) kinds.emplace_back(answer.word, answer.kind);
  v.field(
      {"kind",
       "Images: selects the answer: class, classes (several, or none), values (a vector), pixels "
       "(a class for each) or field (numbers for each pixel).",
       images},
      choice<AnswerKind>(target.kind, std::move(kinds)));
  const AppliesTo pixels{target.kind == AnswerKind::pixels, "kind = \"pixels\"", "target.kind"};
  v.field({"classes", "pixels: gives the number of classes; required.", pixels,
           "give the number of classes, as in classes = 4"},
          optional_integer(target.classes, between(2, 1 << 16)));
  static const std::string with_maps =
      kinds_of_targets([](const Answer& answer) { return answer.is_map; });
  v.field({"ignore",
           "pixels, field: gives the number that marks pixels which do not count.",
           {target.answer().is_map, with_maps.c_str(), "target.kind"}},
          optional_real(target.ignore, between(-1e300, 1e300)));
  static const std::string with_units =
      kinds_of_targets([](const Answer& answer) { return answer.has_units; });
  v.field({"normalize",
           "values, field: subtracts mean and divides by std, one number for each value or "
           "component, or one for all.",
           {target.answer().has_units, with_units.c_str(), "target.kind"}},
          normalize(target.mean, target.std));
}

void check_keys(const DataOptions& data, Reader& reader) {
  if (data.hdf5.transform == ArrayForm::Transform::log1p && data.hdf5.fill &&
      *data.hdf5.fill <= -1 && !reader.any_wrong({"data.hdf5.fill", "data.hdf5.transform"}))
    reader.add_mistake("data.hdf5.fill",
                       fmt::format("{}, but data.hdf5.transform = \"log1p\" needs numbers above -1",
                                   *data.hdf5.fill));
  const AugmentOptions& augment = data.augment;
  if (augment.random_crop > 0 && augment.random_resized_crop.size > 0 &&
      !reader.any_wrong({"data.augment.random_crop", "data.augment.random_resized_crop"}))
    reader.add_mistake("data.augment.random_crop",
                       fmt::format("{} pixels, but random_resized_crop moves the image already; "
                                   "use one of them",
                                   augment.random_crop));
  if (augment.evaluate.crop > 0 && augment.random_resized_crop.size > 0 &&
      augment.evaluate.crop != augment.random_resized_crop.size &&
      !reader.any_wrong({"data.augment.evaluate", "data.augment.random_resized_crop"}))
    reader.add_mistake("data.augment.evaluate",
                       fmt::format("crop = {0}, but random_resized_crop has size = {1}, and the "
                                   "model takes images of one size; use crop = {1}",
                                   augment.evaluate.crop, augment.random_resized_crop.size));
  if (data.decode == Decoding::fast && augment.random_resized_crop.size == 0 &&
      !reader.any_wrong({"data.decode", "data.augment.random_resized_crop"}))
    reader.add_mistake("data.decode",
                       "\"fast\" decodes at the resolution that data.augment.random_resized_crop "
                       "needs, which is missing; give it, as in { size = 224 }, or use \"exact\"");
}

}  // namespace trireme::data
