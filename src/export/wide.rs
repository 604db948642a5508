//! The wide table: one row a tick of the fast lane and GPU, everything else as of that tick.
//!
//! Rule: the columns of the lanes keep their names, types and order, so that a column which a lane
//! gains is in the wide table too. Own columns: `time` (the tick on the wall clock, from the anchor
//! in the header), `uuid`, `ring_power_mw`, `ring_age_us` (how long before the tick the driver took
//! that reading), `energy_mj`, `window`.
//!
//! Not done here: the ring's readings between two ticks are not in it; they are in the table `ring`.

use std::sync::Arc;

use anyhow::Result;
use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{Field, Schema};
use gpumon_core::header::Header;
use gpumon_core::rows::{FastRow, SlowRow};
use gpumon_core::table::{Cell, Table};
use gpumon_core::units::WallUs;
use gpumon_monitor::store::Reader;

use super::join::{Moment, moments};
use super::rows::Select;

/// The table's name in a file's metadata.
pub const NAME: &str = "wide";

/// Passes the wide table to `put`, a batch at a time; the first has no rows and shows the columns.
pub fn batches(
    reader: &Reader,
    select: Select,
    mut put: impl FnMut(&RecordBatch) -> Result<()>,
) -> Result<()> {
    let header = reader.header();
    put(&batch(&[], header)?)?;
    moments(reader, select, |chunk| put(&batch(chunk, header)?))
}

/// Columns in the making.
#[derive(Default)]
struct Columns(Vec<Field>, Vec<ArrayRef>);

impl Columns {
    fn push(&mut self, field: Field, array: ArrayRef) {
        self.0.push(field);
        self.1.push(array);
    }

    fn cells<C: Cell>(&mut self, name: &str, cells: impl Iterator<Item = C>) {
        self.push(Field::new(name, C::data_type(), C::NULLABLE), C::to_array(cells));
    }

    /// The columns of a lane whose name `wanted` takes.
    fn lane(&mut self, rows: &RecordBatch, wanted: impl Fn(&str) -> bool) {
        for (field, array) in rows.schema().fields().iter().zip(rows.columns()) {
            if wanted(field.name()) {
                self.push(field.as_ref().clone(), array.clone());
            }
        }
    }
}

fn batch(moments: &[Moment], header: &Header) -> Result<RecordBatch> {
    let fast = FastRow::to_batch(&moments.iter().map(|m| m.fast.clone()).collect::<Vec<_>>());
    let uuid = |gpu: i32| Some(header.gpus.get(usize::try_from(gpu).ok()?)?.uuid.clone());
    let rows = moments.iter();
    let mut columns = Columns::default();
    columns.cells("time", rows.clone().map(|m| WallUs(header.start_wall_us.0 + m.fast.mono_us)));
    columns.lane(&fast, |name| name == "gpu");
    columns.cells("uuid", rows.clone().map(|m| uuid(m.fast.gpu)));
    columns.lane(&fast, |name| name != "gpu");
    columns.cells("ring_power_mw", rows.clone().map(|m| Some(m.ring.as_ref()?.power_mw)));
    columns.cells("ring_age_us", rows.clone().map(|m| Some(m.fast.mono_us - m.ring.as_ref()?.mono_us)));
    let slow = where_present(rows.clone().map(|m| m.slow.as_ref()))?;
    columns.lane(&slow, |name| name != "gpu" && name != "mono_us");
    columns.cells("energy_mj", rows.clone().map(|m| Some(m.counter.as_ref()?.energy_mj)));
    columns.cells("window", rows.map(|m| m.window.clone()));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(columns.0)), columns.1)?)
}

/// Slow rows in columns; where a row is absent every column is null.
fn where_present<'a>(rows: impl Iterator<Item = Option<&'a SlowRow>>) -> Result<RecordBatch> {
    let mut present = Vec::new();
    let mut indices = Vec::new();
    for row in rows {
        indices.push(row.and_then(|_| u32::try_from(present.len()).ok()));
        present.extend(row.cloned());
    }
    let (indices, present) = (UInt32Array::from(indices), SlowRow::to_batch(&present));
    let fields =
        present.schema().fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>();
    let arrays = present
        .columns()
        .iter()
        .map(|array| take(array.as_ref(), &indices as &dyn Array, None))
        .collect::<Result<_, _>>()?;
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}
