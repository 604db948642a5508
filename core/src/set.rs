//! Sets: models that were measured together on one GPU, a row a member.
//!
//! Rule: rows with the same `set` ran at the same time; what is the whole GPU's (power, clock, temperature, activity) stands in
//! each of them. Slowdown is the time of a batch in the set over that of the same point alone, where that was measured.
//! Files are Parquet (`.parquet`) or CSV (`.csv`) by their name.

use std::fs;
use std::path::Path;

use crate::profile::ProfileRow;
use crate::profile_io::{self, ProfileError, parquet_file};
use crate::table;
use crate::table::Table as _;

table! {
    /// One member of a set of models that ran together.
    pub struct SetRow in "set" {
        /// Number of the set.
        set: i32,
        /// Models in the set.
        members: i32,
        /// Product name of the GPU.
        gpu_name: Option<String>,
        /// UUID of the GPU that was measured.
        gpu_uuid: Option<String>,
        /// Whether that GPU is a simulated one.
        simulated: Option<bool>,
        /// Name of the model.
        model: String,
        /// Items in a batch.
        batch_size: i32,
        /// How the GPU was shared: `mig`, `mps` or `green`.
        share_kind: Option<String>,
        /// Share of the SMs, 0 to 1.
        share: f64,
        /// Compute slices of the MIG instance, of seven.
        mig_slices: Option<i32>,
        /// SM clock that was asked for, MHz; where clocks were left alone, the highest that the GPU may run at.
        frequency: i32,
        /// Whether the clock was locked to it.
        clock_locked: Option<bool>,
        /// SM clock that was reached, mean over the measurement, MHz.
        sm_mhz_achieved: Option<f64>,
        /// Mean power of the whole GPU with all members at work, W.
        avg_power_draw: Option<f64>,
        /// Half width of the 95 % interval of that mean, W; of the readings' scatter alone.
        power_ci95: Option<f64>,
        /// Power above the GPU idling with a context, of all members, W.
        dynamic_power_draw: Option<f64>,
        /// Items a second of this member.
        throughput: Option<f64>,
        /// Mean time of a batch of this member, ms.
        latency: Option<f64>,
        /// Half width of the 95 % interval of that mean, ms.
        latency_ci95: Option<f64>,
        /// Median time of a batch, ms.
        latency_p50: Option<f64>,
        /// 95th percentile of the time of a batch, ms.
        latency_p95: Option<f64>,
        /// 99th percentile of the time of a batch, ms.
        latency_p99: Option<f64>,
        /// Mean time of a batch of the same point alone, ms.
        latency_alone: Option<f64>,
        /// Time of a batch over that alone.
        slowdown: Option<f64>,
        /// Device memory in use by this member, bytes.
        mem_bytes: Option<i64>,
        /// Share of SM time with at least one warp, whole GPU, %.
        sm_util_pct: Option<f64>,
        /// Warps resident over warps possible, whole GPU, %.
        sm_occupancy_pct: Option<f64>,
        /// Share of cycles in which the tensor pipe was active, whole GPU, %.
        tensor_util_pct: Option<f64>,
        /// Share of peak DRAM bandwidth in use, whole GPU, %.
        dram_util_pct: Option<f64>,
        /// Temperature of the GPU at the end, °C.
        temp_c: Option<f64>,
        /// Batches of this member within the measurement.
        n_samples: Option<i64>,
        /// Time the set took, everything included, s.
        wall_s: Option<f64>,
        /// Energy of the GPU over that time, J, by its counter.
        wall_energy_j: Option<f64>,
        /// Whether the row can be used; one member that cannot spoils its set.
        valid: bool,
        /// Why not, or what is special.
        reason: Option<String>,
    }
}

impl SetRow {
    /// The row of a member, from what was measured of it as of a point.
    pub fn of(set: i32, members: i32, row: ProfileRow, latency_alone: Option<f64>) -> Self {
        Self {
            set,
            members,
            gpu_name: row.gpu_name,
            gpu_uuid: row.gpu_uuid,
            simulated: row.simulated,
            model: row.model,
            batch_size: row.batch_size,
            share_kind: row.share_kind,
            share: row.share,
            mig_slices: row.mig_slices,
            frequency: row.frequency,
            clock_locked: row.clock_locked,
            sm_mhz_achieved: row.sm_mhz_achieved,
            avg_power_draw: row.avg_power_draw,
            power_ci95: row.power_ci95,
            dynamic_power_draw: row.dynamic_power_draw,
            throughput: row.throughput,
            latency: row.latency,
            latency_ci95: row.latency_ci95,
            latency_p50: row.latency_p50,
            latency_p95: row.latency_p95,
            latency_p99: row.latency_p99,
            latency_alone,
            slowdown: row.latency.zip(latency_alone).map(|(together, alone)| together / alone),
            mem_bytes: row.mem_bytes,
            sm_util_pct: row.sm_util_pct,
            sm_occupancy_pct: row.sm_occupancy_pct,
            tensor_util_pct: row.tensor_util_pct,
            dram_util_pct: row.dram_util_pct,
            temp_c: row.temp_c,
            n_samples: row.n_samples,
            wall_s: row.wall_s,
            wall_energy_j: row.wall_energy_j,
            valid: row.valid,
            reason: row.reason,
        }
    }
}

/// Writes sets; the file appears whole or not at all.
pub fn write(path: &Path, rows: &[SetRow]) -> Result<(), ProfileError> {
    let bytes = match profile_io::extension(path).as_str() {
        "parquet" => {
            let simulated = rows.iter().any(|r| r.simulated == Some(true));
            parquet_file::table_bytes(rows, simulated, path)?
        }
        "csv" => {
            csv_bytes(rows).map_err(|e| ProfileError::file(path, format!("cannot be made into CSV: {e}")))?
        }
        _ => return Err(ProfileError::file(path, "sets end in `.parquet` or `.csv`; name the file so")),
    };
    profile_io::write_whole(path, &bytes).map_err(ProfileError::io("write", path))
}

/// Reads sets that [`write()`] wrote.
pub fn read(path: &Path) -> Result<Vec<SetRow>, ProfileError> {
    let bytes = fs::read(path).map_err(ProfileError::io("read", path))?;
    let rows: Vec<SetRow> = match bytes.starts_with(b"PAR1") {
        true => parquet_file::table_rows(bytes, path)?,
        false => csv::Reader::from_reader(&bytes[..])
            .deserialize()
            .collect::<Result<_, _>>()
            .map_err(|e| ProfileError::file(path, format!("not a file of sets: {e}")))?,
    };
    for (i, row) in rows.iter().enumerate() {
        if let Some(what) = row.odd() {
            return Err(ProfileError::Line { path: path.into(), place: format!("row {}", i + 1), what });
        }
    }
    Ok(rows)
}

impl SetRow {
    fn odd(&self) -> Option<String> {
        let positive = [
            ("latency", self.latency),
            ("throughput", self.throughput),
            ("avg_power_draw", self.avg_power_draw),
            ("share", Some(self.share)),
        ];
        let odd = positive.into_iter().find(|(_, v)| v.is_some_and(|v| !(v.is_finite() && v > 0.0)));
        odd.map(|(column, v)| {
            format!("`{column}` is {}; expected a finite number above 0; correct it", v.unwrap_or_default())
        })
    }
}

fn csv_bytes(rows: &[SetRow]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(SetRow::columns().iter().map(|c| c.name))?;
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    Ok(writer.into_inner()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<SetRow> {
        let member = |set, model: &str, latency| {
            let mut row = ProfileRow::new(model, 8, 0.29, 1980);
            (row.latency, row.throughput) = (Some(latency), Some(8e3 / latency));
            (row.avg_power_draw, row.clock_locked) = (Some(300.5), Some(false));
            row.reason = Some("a \"quoted\", reason".into());
            SetRow::of(set, 2, row, Some(2.0))
        };
        vec![member(0, "a", 3.0), member(0, "b", 5.0), member(1, "a", 2.0)]
    }

    #[test]
    fn what_is_written_reads_back_and_slowdown_is_a_ratio() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["s.parquet", "s.csv"] {
            let path = folder.path().join(name);
            write(&path, &rows()).unwrap();
            assert_eq!(read(&path).unwrap(), rows(), "{name}");
        }
        assert_eq!(rows()[0].slowdown, Some(1.5));
    }

    #[test]
    fn bad_files_are_explained() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.csv");
        let mut odd = rows();
        odd[1].latency = Some(-1.0);
        write(&path, &odd).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("s.csv`, row 2: `latency` is -1"), "{error}");
        fs::write(&path, "set,model\n1,a\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("not a file of sets"));
        fs::write(&path, b"PAR1 and no more").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("s.csv"));
        assert!(write(&folder.path().join("s.xls"), &[]).unwrap_err().to_string().contains("`.parquet`"));
    }
}
