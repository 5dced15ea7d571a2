//! A data set that is ready for use, whatever it was made from.

use crate::{Dataset, ExampleCounts, HeldOutGroups, Preparation};
use std::fmt;
use std::sync::Arc;

/// A data set ready for use.
pub struct Opened {
    /// The training part.
    pub train: Arc<dyn Dataset>,
    /// The validation part, if there is one.
    pub val: Option<Arc<dyn Dataset>>,
    /// A name per class; empty if no class is predicted, or if the classes are tokens.
    pub class_names: Vec<String>,
    /// What turns a sample as people have it into one like these; none for data that are not prepared, such as texts.
    pub preparation: Option<Preparation>,
    /// Which groups are held out, where whole groups are.
    pub groups: Option<HeldOutGroups>,
    /// How the examples of a file lie in samples, where it has some.
    pub examples: Option<ExampleCounts>,
    /// Whom to thank, if the data ship with dtrain.
    pub attribution: Option<&'static str>,
}

impl Opened {
    /// A data set of one's own, without validation.
    #[must_use]
    pub fn new(train: Arc<dyn Dataset>) -> Self {
        Self {
            train,
            val: None,
            class_names: Vec::new(),
            preparation: None,
            groups: None,
            examples: None,
            attribution: None,
        }
    }

    /// With samples to validate on.
    #[must_use]
    pub fn with_validation(self, val: Arc<dyn Dataset>) -> Self {
        Self { val: Some(val), ..self }
    }

    /// With a name per class.
    #[must_use]
    pub fn with_classes(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { class_names: names.into_iter().map(Into::into).collect(), ..self }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("train", &self.train.len())
            .field("val", &self.val.as_ref().map(|val| val.len()))
            .field("spec", &self.train.spec())
            .finish_non_exhaustive()
    }
}
