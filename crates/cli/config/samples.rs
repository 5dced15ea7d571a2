//! Which model suits the samples of a data set, where the user names none.
//!
//! Only what is known without reading samples is looked at: a shape in the configuration, or the header of an array.

use super::choice::{DataKind, ModelKind};
use super::value::{Value, counts};
use std::path::Path;

/// The shortest side of an image: the blocks of a cnn halve it twice by default.
const SHORTEST_SIDE: usize = 4;

/// The default of `model.kind` for the samples of a data set with these values of its keys, if it is another one than the table's.
pub(super) fn model<'a>(value: impl Fn(&str) -> Option<&'a Value>) -> Option<&'static str> {
    let Some(Value::Word(kind)) = value("data.kind") else { return None };
    let shape = match DataKind::from_name(kind)? {
        DataKind::Csv | DataKind::Parquet => match value("data.shape") {
            Some(Value::List(sides)) => counts(sides),
            _ => return None,
        },
        DataKind::Npy => match value("data.inputs") {
            // What is wrong with the file is said when it is opened.
            Some(Value::Text(path)) => dtrain_data::npy_sample_shape(Path::new(path))?,
            _ => return None,
        },
        DataKind::Windows => {
            let features = value("data.har") == Some(&Value::Word("features"));
            return features.then_some(ModelKind::Mlp.name());
        }
        _ => return None,
    };
    convolution_over(&shape).map(ModelKind::name)
}

fn convolution_over(shape: &[usize]) -> Option<ModelKind> {
    let [_, sides @ ..] = shape else { return None };
    match sides.len() {
        _ if sides.iter().any(|side| *side < SHORTEST_SIDE) => None,
        2 => Some(ModelKind::Cnn),
        3 => Some(ModelKind::Cnn3d),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_and_volumes_are_told_by_their_dimensions_and_thin_ones_are_none() {
        assert_eq!(convolution_over(&[1, 28, 28]), Some(ModelKind::Cnn));
        assert_eq!(convolution_over(&[1, 4, 8, 8]), Some(ModelKind::Cnn3d));
        for none in [&[][..], &[784], &[3, 100], &[28, 28, 3], &[1, 3, 9]] {
            assert_eq!(convolution_over(none), None, "{none:?}");
        }
    }
}
