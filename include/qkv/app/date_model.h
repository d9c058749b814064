// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_APP_DATE_MODEL_H_
#define QKV_APP_DATE_MODEL_H_

#include <qkv/app/translation_model.h>

namespace qkv::app {

// A translator of English dates, part of the library: "the 3rd of May, 1987" -> 1987-05-03.
// It was trained by src/models/dates/train.sh, on days of DaySplit::kTrain.
QKV_API TranslationModel date_model();

}  // namespace qkv::app

#endif  // QKV_APP_DATE_MODEL_H_
