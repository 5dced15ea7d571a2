//! From tables of windows to the sets of training and validation.

use super::options::WindowsOptions;
use crate::preparation::ColumnUse;
use crate::rows::{Recipe, Table, assemble};
use crate::{DataError, Opened};

/// Makes the sets of training and validation, and notes how windows are cut.
pub(super) fn finish(
    train: Table,
    val: Option<Table>,
    options: &WindowsOptions,
    (class_names, classes): (Vec<String>, Option<u32>),
    columns: Vec<ColumnUse>,
) -> Result<Opened, DataError> {
    let recipe = Recipe {
        classes,
        split: options.table.val_split.clone(),
        normalise: options.table.normalise,
        normalise_targets: options.table.normalise_targets,
        class_names,
        columns,
        ..Recipe::default()
    };
    let mut opened = assemble(train, val, recipe)?;
    if let Some(preparation) = &mut opened.preparation {
        preparation.window = Some(options.form);
    }
    Ok(opened)
}
