//! How a row type becomes a table: Arrow batches, Parquet columns, a chapter of `docs/schema.md`.
//!
//! A row type is declared once, with [`table!`](crate::table!); its columns, their order, types,
//! nullability and descriptions all come from that declaration. Absent values are null: a column
//! that may be absent is an `Option`.
//!
//! Types: `i32`, `i64`, `f64`, `bool`, `String`, and [`WallUs`] as TIMESTAMP(MICROS, UTC). Integers
//! are signed, because Spark has no unsigned ones.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch};
use arrow::array::{StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use crate::units::WallUs;

/// What is known of a column apart from its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name in the file.
    pub name: &'static str,
    /// Arrow type.
    pub data_type: DataType,
    /// Whether a value may be absent.
    pub nullable: bool,
    /// One or more sentences for the reader of the file.
    pub doc: String,
}

/// Why a batch cannot be read as rows.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TableError {
    /// A column that every row needs is not there.
    #[error("table `{table}` lacks the column `{column}`")]
    MissingColumn {
        /// Table name.
        table: &'static str,
        /// Column name.
        column: &'static str,
    },
    /// A column has another type than the table's.
    #[error("column `{column}` of table `{table}` is {found}, expected {expected}")]
    WrongType {
        /// Table name.
        table: &'static str,
        /// Column name.
        column: &'static str,
        /// Type in the file.
        found: String,
        /// Type in the schema.
        expected: String,
    },
    /// A column that may not be absent holds a null.
    #[error("column `{column}` of table `{table}` holds a null, which that column never may")]
    UnexpectedNull {
        /// Table name.
        table: &'static str,
        /// Column name.
        column: &'static str,
    },
}

/// A row type that is stored as a table.
pub trait Table: Sized {
    /// Name of the table, which is also its file's stem.
    const NAME: &'static str;
    /// What one row is.
    fn doc() -> String;
    /// The columns in file order.
    fn columns() -> Vec<Column>;
    /// Rows as one Arrow batch.
    fn to_batch(rows: &[Self]) -> RecordBatch;
    /// The rows of a batch. Columns are found by name; unknown ones are ignored, and a nullable one
    /// that is missing reads as absent.
    fn from_batch(batch: &RecordBatch) -> Result<Vec<Self>, TableError>;

    /// The Arrow schema.
    fn schema() -> Arc<Schema> {
        let fields = Self::columns().into_iter().map(|c| Field::new(c.name, c.data_type, c.nullable));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }
}

/// A value that fits into one column.
pub trait Cell: Sized + Clone {
    /// Whether a value may be absent.
    const NULLABLE: bool;
    /// Arrow type of the column.
    fn data_type() -> DataType;
    /// The column's array.
    fn to_array(cells: impl Iterator<Item = Self>) -> ArrayRef;
    /// The cells of an array; `None` if the array has another type or an unexpected null.
    fn from_array(array: &dyn Array) -> Option<Vec<Self>>;
}

macro_rules! cell {
    ($rust:ty, $array:ty, $data_type:expr, $wrap:expr, $unwrap:expr, $finish:expr) => {
        impl Cell for $rust {
            const NULLABLE: bool = false;
            fn data_type() -> DataType {
                $data_type
            }
            fn to_array(cells: impl Iterator<Item = Self>) -> ArrayRef {
                let array: $array = cells.map(|c| Some($unwrap(c))).collect();
                Arc::new($finish(array))
            }
            fn from_array(array: &dyn Array) -> Option<Vec<Self>> {
                <Option<Self>>::from_array(array)?.into_iter().collect()
            }
        }
        impl Cell for Option<$rust> {
            const NULLABLE: bool = true;
            fn data_type() -> DataType {
                $data_type
            }
            fn to_array(cells: impl Iterator<Item = Self>) -> ArrayRef {
                let array: $array = cells.map(|c| c.map($unwrap)).collect();
                Arc::new($finish(array))
            }
            fn from_array(array: &dyn Array) -> Option<Vec<Self>> {
                let array = array.as_any().downcast_ref::<$array>()?;
                Some(array.iter().map(|v| v.map($wrap)).collect())
            }
        }
    };
}

cell!(i32, Int32Array, DataType::Int32, |v| v, |v| v, |a| a);
cell!(i64, Int64Array, DataType::Int64, |v| v, |v| v, |a| a);
cell!(f64, Float64Array, DataType::Float64, |v| v, |v| v, |a| a);
cell!(bool, BooleanArray, DataType::Boolean, |v| v, |v| v, |a| a);
cell!(String, StringArray, DataType::Utf8, |v: &str| v.to_owned(), |v| v, |a| a);
cell!(
    WallUs,
    TimestampMicrosecondArray,
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
    WallUs,
    |v: WallUs| v.0,
    |a: TimestampMicrosecondArray| a.with_timezone("UTC")
);

/// A set of rows in columns.
pub type Batch = RecordBatch;

/// Columns of one table as a batch; used by [`table!`](crate::table!).
#[allow(clippy::expect_used, reason = "the macro makes the arrays and the schema from the same list")]
pub fn batch(schema: Arc<Schema>, columns: Vec<ArrayRef>) -> Batch {
    RecordBatch::try_new(schema, columns).expect("arrays and schema come from one declaration")
}

/// Reads one column of a batch; used by [`table!`](crate::table!).
pub fn read_column<C: Cell>(
    batch: &RecordBatch,
    table: &'static str,
    column: &'static str,
) -> Result<Vec<C>, TableError> {
    let Some(array) = batch.column_by_name(column) else {
        if C::NULLABLE {
            let nulls = arrow::array::new_null_array(&C::data_type(), batch.num_rows());
            return C::from_array(nulls.as_ref()).ok_or(TableError::MissingColumn { table, column });
        }
        return Err(TableError::MissingColumn { table, column });
    };
    if array.data_type() != &C::data_type() {
        return Err(TableError::WrongType {
            table,
            column,
            found: array.data_type().to_string(),
            expected: C::data_type().to_string(),
        });
    }
    C::from_array(array.as_ref()).ok_or(TableError::UnexpectedNull { table, column })
}

/// The chapter of `docs/schema.md` on one table.
pub fn markdown<T: Table>() -> String {
    let mut text = format!(
        "## `{}`\n\n{}\n\n| column | type | null | meaning |\n|---|---|---|---|\n",
        T::NAME,
        T::doc()
    );
    for c in T::columns() {
        let null = if c.nullable { "yes" } else { "no" };
        let _ = writeln!(text, "| `{}` | {} | {null} | {} |", c.name, type_name(&c.data_type), c.doc);
    }
    text
}

fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Timestamp(..) => "timestamp (µs, UTC)".into(),
        DataType::Utf8 => "string".into(),
        other => other.to_string().to_lowercase(),
    }
}

/// Declares a row type and its table in one place. The declaring crate needs `serde` with `derive`.
///
/// ```
/// gpumon_core::table! {
///     /// One measurement.
///     pub struct Demo in "demo" {
///         /// When, µs.
///         mono_us: i64,
///         /// Power, mW; null when it could not be read.
///         power_mw: Option<i32>,
///     }
/// }
/// ```
#[macro_export]
macro_rules! table {
    (
        $(#[doc = $row_doc:literal])*
        pub struct $name:ident in $table:literal {
            $( $(#[doc = $doc:literal])* $field:ident : $ty:ty, )*
        }
    ) => {
        $(#[doc = $row_doc])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $ty, )*
        }

        impl $crate::table::Table for $name {
            const NAME: &'static str = $table;

            fn doc() -> String {
                [$($row_doc),*].map(str::trim).join(" ")
            }

            fn columns() -> Vec<$crate::table::Column> {
                vec![$( $crate::table::Column {
                    name: stringify!($field),
                    data_type: <$ty as $crate::table::Cell>::data_type(),
                    nullable: <$ty as $crate::table::Cell>::NULLABLE,
                    doc: [$($doc),*].map(str::trim).join(" "),
                } ),*]
            }

            fn to_batch(rows: &[Self]) -> $crate::table::Batch {
                let arrays = vec![$(
                    <$ty as $crate::table::Cell>::to_array(rows.iter().map(|r| r.$field.clone()))
                ),*];
                $crate::table::batch(Self::schema(), arrays)
            }

            fn from_batch(
                batch: &$crate::table::Batch,
            ) -> Result<Vec<Self>, $crate::table::TableError> {
                $( let mut $field =
                    $crate::table::read_column::<$ty>(batch, $table, stringify!($field))?.into_iter(); )*
                Ok((0..batch.num_rows())
                    .map_while(|_| Some(Self { $( $field: $field.next()?, )* }))
                    .collect())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::table! {
        /// A row
        /// for tests.
        pub struct Row in "rows" {
            /// Needed.
            id: i32,
            /// When.
            at: Option<WallUs>,
            /// Who.
            name: Option<String>,
        }
    }

    fn rows() -> Vec<Row> {
        vec![Row { id: 1, at: Some(WallUs(10)), name: None }, Row { id: 2, at: None, name: Some("b".into()) }]
    }

    #[test]
    fn rows_survive_the_way_through_a_batch() {
        let batch = Row::to_batch(&rows());
        assert_eq!(batch.schema(), Row::schema());
        assert_eq!(Row::from_batch(&batch).unwrap(), rows());
    }

    #[test]
    fn what_is_missing_is_absent_or_named() {
        let batch = Row::to_batch(&rows());
        let without_name = batch.project(&[0, 1]).unwrap();
        assert_eq!(Row::from_batch(&without_name).unwrap()[1].name, None);
        let without_id = batch.project(&[1, 2]).unwrap();
        assert_eq!(
            Row::from_batch(&without_id),
            Err(TableError::MissingColumn { table: "rows", column: "id" })
        );
    }

    #[test]
    fn a_wrong_type_and_a_null_are_named() {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
        assert!(matches!(Row::from_batch(&batch), Err(TableError::WrongType { column: "id", .. })));
        let ids: ArrayRef = Arc::new(Int32Array::from(vec![None]));
        let batch = RecordBatch::try_from_iter_with_nullable([("id", ids, true)]).unwrap();
        assert!(matches!(Row::from_batch(&batch), Err(TableError::UnexpectedNull { column: "id", .. })));
    }

    #[test]
    fn the_schema_chapter_lists_every_column() {
        let text = markdown::<Row>();
        assert!(text.contains("A row for tests."));
        assert!(text.contains("| `at` | timestamp (µs, UTC) | yes | When. |"));
    }
}
