//! The rows of a table one by one, and which of them are meant.

use std::vec;

use gpumon_core::rows::{CounterRow, EventRow, FastRow, ProcessRow, RingRow, SlowRow};
use gpumon_monitor::store::{Batches, Reader, Row, StoreError};

/// A row that belongs to a GPU, or to all of them.
pub trait OfGpu {
    /// Index of the GPU in the header; nothing if the row concerns all.
    fn of_gpu(&self) -> Option<i32>;
}

macro_rules! of_gpu {
    ($($row:ty)*) => { $( impl OfGpu for $row {
        fn of_gpu(&self) -> Option<i32> {
            Some(self.gpu)
        }
    } )* };
}

of_gpu! { FastRow RingRow SlowRow CounterRow ProcessRow }

impl OfGpu for EventRow {
    fn of_gpu(&self) -> Option<i32> {
        self.gpu
    }
}

/// Which rows are meant: of one GPU or all, and from a span of time, its end not included.
#[derive(Clone, Copy, Debug)]
pub struct Select {
    /// Index of the GPU; nothing means all.
    pub gpu: Option<i32>,
    /// Start, µs.
    pub from_us: i64,
    /// End, µs.
    pub to_us: i64,
}

impl Select {
    /// Whether a row of this GPU and time is meant. A row that concerns all GPUs concerns each.
    pub fn takes(&self, gpu: Option<i32>, mono_us: i64) -> bool {
        let gpu_fits = self.gpu.is_none() || gpu.is_none() || self.gpu == gpu;
        gpu_fits && (self.from_us..self.to_us).contains(&mono_us)
    }
}

/// The rows of a table in time order.
pub struct Rows<R> {
    batches: Batches<R>,
    batch: vec::IntoIter<R>,
}

impl<R: Row> Rows<R> {
    /// The rows of `reader`'s table `R`.
    pub fn of(reader: &Reader) -> Self {
        Self { batches: reader.batches(), batch: Vec::new().into_iter() }
    }
}

impl<R: Row> Iterator for Rows<R> {
    type Item = Result<R, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.batch.next() {
                return Some(Ok(row));
            }
            match self.batches.next()? {
                Ok(rows) => self.batch = rows.into_iter(),
                Err(e) => return Some(Err(e)),
            }
        }
    }
}
