//! Where the label is among the columns, by the first line of a table.

use crate::csv::lines::{ColumnRef, Line};
use crate::{Column, CsvOptions, DataError};
use dtrain_types::counted;

/// Where the label is among how many columns.
pub(super) struct Layout {
    pub columns: usize,
    pub label: usize,
    /// What the header calls the columns; empty without a header.
    pub names: Vec<String>,
}

impl Layout {
    /// What the first line says.
    pub fn of(first: &Line<'_>, options: &CsvOptions) -> Result<Self, DataError> {
        let fields = first.fields();
        let is_header = options.header.unwrap_or_else(|| {
            let named = matches!(&options.label, Column::Name(name) if fields.contains(&name.as_str()));
            named || fields.iter().all(|field| field.parse::<f64>().is_err())
        });
        let label = match &options.label {
            Column::Last => fields.len().checked_sub(1),
            Column::Index(index) => Some(*index).filter(|index| *index < fields.len()),
            Column::Name(name) => fields.iter().position(|field| is_header && *field == name),
        };
        let columns = match (&options.label, is_header) {
            (Column::Name(_), true) => fields.join(", "),
            (Column::Name(_), false) => format!("{} without names", counted(fields.len(), "column")),
            _ => counted(fields.len(), "column"),
        };
        let column = options.label.to_string();
        let label =
            label.ok_or_else(|| DataError::NoSuchColumn { file: options.path.clone(), column, columns })?;
        let names =
            if is_header { fields.iter().map(|name| (*name).to_owned()).collect() } else { Vec::new() };
        Ok(Self { columns: fields.len(), label, names })
    }

    pub fn at(&self, column: usize) -> ColumnRef<'_> {
        ColumnRef { column, name: self.names.get(column).map(String::as_str) }
    }
}
