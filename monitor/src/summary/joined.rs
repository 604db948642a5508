//! Power readings and the processes of each second, in one stream in order of time.
//!
//! Rule: the processes of a time come before a reading of that time or later. Nothing is held but a row group a table.

use std::vec;

use gpumon_core::rows::ProcessRow;

use crate::store::{Batches, Reader, Row, StoreError};

/// The processes that one GPU had at one time; never none.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    pub(super) gpu: i32,
    /// µs since the start of the recording.
    pub(super) at_us: i64,
    pub(super) rows: Vec<ProcessRow>,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step<P> {
    Power(P),
    Processes(Group),
}

/// The rows of one table, one by one.
struct Rows<R> {
    batches: Batches<R>,
    batch: vec::IntoIter<R>,
}

impl<R: Row> Rows<R> {
    fn of(reader: &Reader) -> Self {
        Self { batches: reader.batches(), batch: Vec::new().into_iter() }
    }

    fn take(&mut self) -> Result<Option<R>, StoreError> {
        loop {
            if let Some(row) = self.batch.next() {
                return Ok(Some(row));
            }
            match self.batches.next() {
                Some(rows) => self.batch = rows?.into_iter(),
                None => return Ok(None),
            }
        }
    }
}

/// The stream.
pub(super) struct Joined<P> {
    power: Rows<P>,
    processes: Rows<ProcessRow>,
    next_power: Option<P>,
    next_process: Option<ProcessRow>,
}

impl<P: Row> Joined<P> {
    /// The readings of table `P` and the processes.
    pub(super) fn of(reader: &Reader) -> Result<Self, StoreError> {
        let (mut power, mut processes) = (Rows::of(reader), Rows::of(reader));
        let (next_power, next_process) = (power.take()?, processes.take()?);
        Ok(Self { power, processes, next_power, next_process })
    }

    /// The next step; nothing at the end.
    pub(super) fn next(&mut self) -> Result<Option<Step<P>>, StoreError> {
        let power_us = self.next_power.as_ref().map(Row::mono_us);
        let is_due = |row: &mut ProcessRow| power_us.is_none_or(|power_us| row.mono_us <= power_us);
        if let Some(first) = self.next_process.take_if(is_due) {
            return self.group(first).map(|group| Some(Step::Processes(group)));
        }
        let Some(row) = self.next_power.take() else { return Ok(None) };
        self.next_power = self.power.take()?;
        Ok(Some(Step::Power(row)))
    }

    fn group(&mut self, first: ProcessRow) -> Result<Group, StoreError> {
        let (gpu, at_us) = (first.gpu, first.mono_us);
        let mut rows = vec![first];
        self.next_process = self.processes.take()?;
        while let Some(row) = self.next_process.take_if(|r| (r.gpu, r.mono_us) == (gpu, at_us)) {
            rows.push(row);
            self.next_process = self.processes.take()?;
        }
        Ok(Group { gpu, at_us, rows })
    }
}
