//! Measured sets: members as they are alone, and what was measured of them together.
//!
//! Rule: rows with the same number are a set; the members come from a model file's predictions or from the rows of the
//! profile. A set is at the power limit if its clock was below 99.5 % of the one asked for.
//!
//! Cases: a set with a row that is not valid, or with a member that has no prediction, is left out whole and counted by
//! reason.

use std::collections::BTreeMap;

use gpumon_core::profile::ProfileRow;
use gpumon_core::set::SetRow;
use gpumon_core::units::Megahertz;

use super::activity::Activity;
use super::error::ColocationError;
use super::member::{self, Gpu, Member};
use crate::base::BasePower;
use crate::model_file::ModelFile;
use crate::point::{Point, Share};

/// A clock below this part of the one asked for was held down.
const HELD: f64 = 0.995;

/// Models that ran together.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredSet {
    /// Its number.
    pub number: i32,
    /// The GPU.
    pub gpu: Gpu,
    /// Each model as it is alone.
    pub members: Vec<Member>,
    /// Mean power of the whole GPU, W.
    pub power_w: Option<f64>,
    /// Time of a batch over that alone, of each member.
    pub slowdowns: Vec<Option<f64>>,
    /// Latency of each member over the one that it is taken to have alone: the slowdown, with the error of that.
    pub stretches: Vec<Option<f64>>,
    /// Clock that was reached over the one asked for.
    pub clock: Option<f64>,
}

/// Model, batch, share in millionths, slices: what tells members apart.
type Key = (String, u32, i64, u8);

impl MeasuredSet {
    /// Whether the power limit held the clock down.
    pub fn is_limited(&self) -> bool {
        self.clock.is_some_and(|clock| clock < HELD)
    }

    fn keys(&self) -> Vec<Key> {
        let key = |m: &Member| {
            let (ppm, slices) = match m.point.share {
                Share::Sms(share) => ((share * 1e6).round() as i64, 0),
                Share::Slices(n) => (0, n),
            };
            (m.model.clone(), m.point.batch, ppm, slices)
        };
        self.members.iter().map(key).collect()
    }

    /// Whether two of the members, at the same points, are members of the other set as well.
    pub(crate) fn shares_a_pair(&self, other: &Self) -> bool {
        in_common(self.keys(), other.keys()) > 1
    }

    /// Whether two of the models, at any points, are in the other set as well.
    pub(crate) fn shares_two_models(&self, other: &Self) -> bool {
        let models = |set: &Self| set.members.iter().map(|m| m.model.clone()).collect();
        in_common(models(self), models(other)) > 1
    }
}

/// How many of the first have one of their own in the second.
fn in_common<T: PartialEq>(ours: Vec<T>, mut theirs: Vec<T>) -> usize {
    let taken = ours.iter().filter(|key| {
        let at = theirs.iter().position(|k| k == *key);
        at.map(|at| theirs.swap_remove(at)).is_some()
    });
    taken.count()
}

/// Where members are taken from.
#[derive(Clone, Copy)]
pub enum Alone<'a> {
    /// A model file and activities.
    Models(&'a ModelFile, &'a [Activity]),
    /// Rows of the profile, and the base power.
    Rows(&'a [ProfileRow], &'a BasePower),
}

/// Sets that can be used, and why others were left out, with counts.
///
/// # Errors
///
/// [`ColocationError::NoBasePower`]; [`ColocationError::OtherGpu`] if the rows name another GPU than the model file.
pub fn measured(
    rows: &[SetRow],
    alone: Alone<'_>,
    cap_w: Option<f64>,
) -> Result<(Vec<MeasuredSet>, Vec<String>), ColocationError> {
    let base = match alone {
        Alone::Models(models, _) => models.base.as_ref().ok_or(ColocationError::NoBasePower)?,
        Alone::Rows(_, base) => base,
    };
    if let Alone::Models(ModelFile { gpu_name: Some(models), .. }, _) = alone
        && let Some(sets) = rows.iter().filter_map(|r| r.gpu_name.as_ref()).find(|name| *name != models)
    {
        return Err(ColocationError::OtherGpu { sets: sets.clone(), models: models.clone() });
    }
    let mut groups = BTreeMap::<i32, Vec<&SetRow>>::new();
    for row in rows {
        groups.entry(row.set).or_default().push(row);
    }
    let (mut sets, mut left_out) = (Vec::new(), BTreeMap::<String, usize>::new());
    for (number, rows) in groups {
        match set(number, &rows, alone, base, cap_w) {
            Ok(set) => sets.push(set),
            Err(reason) => *left_out.entry(reason).or_default() += 1,
        }
    }
    let reasons = left_out.into_iter().map(|(reason, n)| format!("{n} sets: {reason}"));
    Ok((sets, reasons.collect()))
}

fn set(
    number: i32,
    rows: &[&SetRow],
    alone: Alone<'_>,
    base: &BasePower,
    cap_w: Option<f64>,
) -> Result<MeasuredSet, String> {
    let positive = |v: Option<f64>| v.filter(|v| v.is_finite() && *v > 0.0);
    let (mut members, mut slowdowns, mut stretches) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        if !row.valid {
            return Err("marked invalid".into());
        }
        let member = member(row, alone)?;
        let ratio = positive(row.latency).zip(positive(row.latency_alone)).map(|(both, alone)| both / alone);
        let against = positive(row.latency).map(|together| together / member.latency_ms.value);
        slowdowns.push(positive(row.slowdown).or(ratio).or(against));
        stretches.push(against);
        members.push(member);
    }
    let Some(first) = rows.first() else { return Err("no rows".into()) };
    let members_meant = usize::try_from(first.members).unwrap_or(0);
    if members_meant != members.len() {
        return Err(format!("{} of {members_meant} members", members.len()));
    }
    let frequency = u32::try_from(first.frequency).map_err(|_| "`frequency` out of range".to_owned())?;
    let gpu = Gpu::at(base, Megahertz(frequency), cap_w);
    member::check(&gpu, &members).map_err(|e| e.to_string())?;
    let clock = positive(first.sm_mhz_achieved).map(|mhz| (mhz / f64::from(frequency)).min(1.0));
    Ok(MeasuredSet {
        number,
        gpu,
        members,
        power_w: positive(first.avg_power_draw),
        slowdowns,
        stretches,
        clock,
    })
}

fn member(row: &SetRow, alone: Alone<'_>) -> Result<Member, String> {
    let mut at = ProfileRow::new(&row.model, row.batch_size, row.share, row.frequency);
    at.mig_slices = row.mig_slices;
    match alone {
        Alone::Models(models, activity) => {
            let point = Point::of(&at).map_err(|column| format!("`{column}` out of range"))?;
            Member::of_models(models, activity, &row.model, &point).map_err(|e| e.to_string())
        }
        Alone::Rows(rows, _) => {
            let found = rows.iter().find(|r| r.valid && r.key() == at.key()).and_then(Member::of_row);
            found.ok_or_else(|| format!("`{}` was not measured alone at its point", row.model))
        }
    }
}
