//! The GPUs of a process that loaded the library, and each call's way to them.
//!
//! Rule: a call is counted, then struck by the faults that the script has for it, then answered by the
//! simulated GPU at the present time; it returns when the real call would. One lock guards the GPUs;
//! no call holds it while it waits.
//! Cases: a GPU that is lost answers so to every call.
//! Not done here: a call of one process does not wait for another process's energy-counter call.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpumon_core::clock::{Clock, RealClock};
use gpumon_core::units::MonoUs;
use gpumon_simgpu::{Reading, SimGpu};

use crate::calls;
use crate::codes::{Answer, Code};
use crate::counts::Counts;
use crate::edge::Out;
use crate::faults::What;
use crate::handles::Device;
use crate::log::{Change, Header, Log, Record};
use crate::model::Model;
use crate::script::{Process, Script, ScriptError};

/// All that a script describes, at work.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) script: Script,
    zero: MonoUs,
    zero_wall_us: i64,
    counts: Counts,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    log: Log,
    models: Vec<Model>,
}

impl Inner {
    fn catch_up(&mut self) -> io::Result<()> {
        let news = self.log.news()?;
        self.apply(&news);
        Ok(())
    }

    fn apply(&mut self, records: &[Record]) {
        for record in records {
            if let Some(model) = self.models.get_mut(record.gpu as usize) {
                model.apply(record);
            }
        }
    }
}

/// FNV-1a, which stays the same from build to build.
pub(crate) fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Where the call counts of a state file lie.
fn counts_beside(state: &Path) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(".counts");
    name.into()
}

impl World {
    /// The world of a script, which begins now or, with a state file, began with it.
    pub(crate) fn open(script: Script) -> Result<Self, ScriptError> {
        let functions = calls::functions();
        let gpus = fingerprint(&format!("{:?} {functions:?}", script.spec));
        let fresh = Header::new(RealClock.mono(), RealClock.wall(), format!("{gpus:016x}"));
        let log = match &script.state {
            Some(path) => Log::open(path, fresh)?,
            None => Log::in_memory(fresh),
        };
        let beside = script.state.as_ref().map(|path| counts_beside(path));
        let counts = Counts::open(beside.as_deref(), functions.len(), script.spec.count).map_err(|e| {
            let file = beside.iter().map(|path| path.display().to_string()).collect();
            ScriptError::State { file, message: e.to_string() }
        })?;
        let instances = |gpu: u32| {
            let on_it = script.instances.iter().filter(move |i| i.gpu == gpu);
            on_it.map(|i| (i.slices, i.start))
        };
        let model = |sim: SimGpu| {
            let instances = instances(sim.index());
            Model::new(sim).with_instances(instances)
        };
        let models = SimGpu::fleet(&script.spec).into_iter().map(model).collect();
        Ok(Self {
            zero: MonoUs(log.header.zero_mono_us),
            zero_wall_us: log.header.zero_wall_us,
            counts,
            inner: Mutex::new(Inner { log, models }),
            script,
        })
    }

    /// Time since the world began.
    pub(crate) fn now(&self) -> MonoUs {
        MonoUs(RealClock.mono().since_us(self.zero))
    }

    /// Wall-clock time of a moment, µs.
    pub(crate) fn wall_us(&self, at: MonoUs) -> i64 {
        self.zero_wall_us + at.0
    }

    /// The moment of a wall-clock time.
    pub(crate) fn at_wall_us(&self, wall_us: i64) -> MonoUs {
        MonoUs(wall_us.saturating_sub(self.zero_wall_us))
    }

    pub(crate) fn gpu_count(&self) -> u32 {
        self.script.spec.count
    }

    /// How often a function was called, by all processes that share the state.
    pub(crate) fn calls(&self, function: &str, gpu: Option<u32>) -> u64 {
        calls::functions().binary_search(&function).map_or(0, |index| self.counts.get(index, gpu))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a GPU has vanished so far: handles of an earlier generation are dead. The code that they answer, and
    /// whether it is gone now.
    pub(crate) fn generation(&self, gpu: u32) -> (u8, Option<Code>, bool) {
        let now_us = self.now().0;
        let begun = self.script.faults.iter().filter_map(|fault| fault.vanished(gpu, now_us));
        begun.fold((0, None, false), |(n, _, gone), (code, now)| (n + 1, Some(code), gone || now))
    }

    /// Fails while a GPU is gone, so that nobody gets a new handle.
    pub(crate) fn present(&self, gpu: u32) -> Answer {
        match self.generation(gpu) {
            (_, Some(code), true) => Err(code),
            _ => Ok(()),
        }
    }

    /// Looks at a GPU as it is now.
    pub(crate) fn look<T>(&self, gpu: u32, look: impl FnOnce(&mut Model, MonoUs) -> T) -> Answer<T> {
        let mut inner = self.inner();
        inner.catch_up().map_err(|_| Code::UNKNOWN)?;
        let now = self.now();
        let model = inner.models.get_mut(gpu as usize).ok_or(Code::INVALID_ARGUMENT)?;
        Ok(look(model, now))
    }

    /// Reads a sensor, and returns when its call does.
    pub(crate) fn read<T>(&self, gpu: u32, read: impl FnOnce(&mut Model, MonoUs) -> Reading<T>) -> Answer<T> {
        let reading = self.look(gpu, read)?;
        RealClock.sleep_until(self.zero.plus_us(reading.done.0));
        reading.value.map_err(|_| Code::NOT_SUPPORTED)
    }

    /// Changes a GPU for all processes: `decide` sees it as it is and says what changes, or refuses.
    pub(crate) fn change<T>(
        &self,
        gpu: u32,
        decide: impl FnOnce(&Model, MonoUs) -> Answer<(Change, T)>,
    ) -> Answer<T> {
        self.change_at(gpu, None, decide)
    }

    fn change_at<T>(
        &self,
        gpu: u32,
        at: Option<MonoUs>,
        decide: impl FnOnce(&Model, MonoUs) -> Answer<(Change, T)>,
    ) -> Answer<T> {
        let inner = &mut *self.inner();
        let models = &mut inner.models;
        let (record, value) = inner.log.append(|news| {
            for record in &news {
                if let Some(model) = models.get_mut(record.gpu as usize) {
                    model.apply(record);
                }
            }
            // Read under the lock, so that records lie in the order of their times.
            let at = at.unwrap_or_else(|| self.now());
            let model = models.get(gpu as usize).ok_or(Code::INVALID_ARGUMENT)?;
            let (change, value) = decide(model, at)?;
            Ok::<_, Code>((Record { at_us: at.0, gpu, change }, value))
        })?;
        inner.apply(&[record]);
        Ok(value)
    }

    /// Counts a call and plays the faults that strike it.
    pub(crate) fn begin(&self, function: &'static str, gpu: Option<u32>) -> Answer<Call<'_>> {
        let index = calls::functions().binary_search(&function).map_err(|_| Code::UNKNOWN)?;
        let nth = self.counts.next(index, gpu);
        let now = self.now();
        let mut call = Call { world: self, garbage: None, without_effect: false, fields: Vec::new() };
        for fault in &self.script.faults {
            if !fault.strikes(function, gpu, nth, now.0) {
                continue;
            }
            match fault.what {
                What::Error(code) => return Err(code),
                What::Garbage(value) => call.garbage = Some(value),
                What::Delay(us) => std::thread::sleep(Duration::from_micros(us.unsigned_abs())),
                What::Hang(kernel) => crate::hang::forever(kernel),
                What::Lost => self.once(gpu, now, |model| (!model.lost).then_some(Change::Lost))?,
                What::CounterReset => self.once(gpu, MonoUs(fault.from_us.max(0)), |model| {
                    let done = model.resets.contains(&fault.index);
                    (!done).then_some(Change::CounterReset { fault: fault.index })
                })?,
                What::FieldError(..) | What::FieldType(..) => call.fields.push(fault.what),
                What::NoEffect => call.without_effect = true,
                What::MissingSymbol | What::Vanish(_) => {}
            }
        }
        match gpu {
            Some(gpu) if self.look(gpu, |model, _| model.lost)? => Err(Code::GPU_IS_LOST),
            _ => Ok(call),
        }
    }

    /// Makes a fault's change unless it was made before.
    fn once(&self, gpu: Option<u32>, at: MonoUs, change: impl Fn(&Model) -> Option<Change>) -> Answer {
        let Some(gpu) = gpu else { return Ok(()) };
        if self.look(gpu, |model, _| change(model).is_none())? {
            return Ok(());
        }
        let at = if at.0 > 0 { at } else { self.now() };
        let made = self.change_at(gpu, Some(at), |model, _| {
            change(model).map(|change| (change, ())).ok_or(Code::NOT_FOUND)
        });
        // Another process may have been faster.
        if made == Err(Code::NOT_FOUND) { Ok(()) } else { made }
    }
}

impl From<io::Error> for Code {
    fn from(_: io::Error) -> Self {
        Self::UNKNOWN
    }
}

/// One call that goes on to be answered.
pub(crate) struct Call<'w> {
    pub(crate) world: &'w World,
    /// What numbers the call gives instead of the true ones.
    garbage: Option<i64>,
    /// Whether a change is accepted and not made.
    without_effect: bool,
    /// What befalls fields.
    pub(crate) fields: Vec<What>,
}

impl Call<'_> {
    /// A number, unless the script wants another.
    pub(crate) fn number(&self, value: u64) -> u64 {
        self.garbage.map_or(value, |garbage| garbage as u64)
    }

    /// A number of 32 bits, unless the script wants another, which is cut to what fits.
    pub(crate) fn number32(&self, value: u32) -> u32 {
        self.garbage.map_or(value, |garbage| garbage.clamp(0, i64::from(u32::MAX)) as u32)
    }

    /// Gives a number of 32 bits.
    pub(crate) fn give32(&self, to: &Out<u32>, value: u32) -> Answer {
        to.put(self.number32(value));
        Ok(())
    }

    /// Reads a sensor.
    pub(crate) fn read<T>(&self, gpu: u32, read: impl FnOnce(&mut Model, MonoUs) -> Reading<T>) -> Answer<T> {
        self.world.read(gpu, read)
    }

    /// Changes a GPU for all processes, unless the script wants the call to succeed without effect.
    pub(crate) fn change<T>(
        &self,
        gpu: u32,
        decide: impl FnOnce(&Model, MonoUs) -> Answer<(Change, T)>,
    ) -> Answer<T> {
        match self.without_effect {
            true => self.world.look(gpu, |model, now| decide(model, now).map(|(_, value)| value))?,
            false => self.world.change(gpu, decide),
        }
    }

    /// Refuses what only root may do.
    pub(crate) fn needs_root(&self) -> Answer {
        if self.world.script.privileged { Ok(()) } else { Err(Code::NO_PERMISSION) }
    }

    /// Processes of the script on a GPU.
    pub(crate) fn scripted(&self, gpu: u32) -> Vec<Process> {
        self.world.script.processes.iter().copied().filter(|p| p.gpu == gpu).collect()
    }

    /// Processes on a GPU, or on one of its instances: the script's and the description's.
    pub(crate) fn processes(&self, device: Device) -> Vec<Process> {
        let gpu = device.physical();
        let mut all = self.scripted(gpu);
        let now = self.world.now();
        let described = self.world.script.spec.processes.iter().filter(|p| p.lives(now)).map(|p| Process {
            gpu,
            pid: p.pid,
            used_bytes: p.mem_bytes,
            share_pct: Some(p.share_pct),
            gpu_instance: p.mig_instance,
        });
        all.extend(described);
        match device {
            Device::Gpu(_) => all,
            Device::Mig { gi, .. } => all.into_iter().filter(|p| p.gpu_instance == Some(gi)).collect(),
        }
    }
}
