//! For tests of programs: a folder with a fake library in it, and the environment that makes a program
//! load it.
//!
//! Cargo builds the library beside a test's executable (`target/…/deps/libgpumon_fakenvml.so`) when
//! this crate is among its dependencies. The library is initialised once in a process, so each test
//! gives it to a process of its own:
//!
//! ```no_run
//! let fake = gpumon_fakenvml::testing::Fake::new("count = 2")?;
//! let mut command = std::process::Command::new("gpumon");
//! command.args(["devices", "--json"]).envs(fake.environment());
//! # Ok::<(), gpumon_fakenvml::testing::FakeError>(())
//! ```
//!
//! Case: functions that this crate's Rust library defines by C names are not among the dynamic
//! symbols of a test's executable, so nothing resolves to them but the copy that is loaded.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gpumon_core::geometry::SEVEN_SLICES;
use gpumon_core::units::{Megahertz, Milliwatts, MonoUs, WallUs};
use gpumon_simgpu::SimGpu;

use crate::codes::Code;
use crate::elf::{self, ElfError};
use crate::log::Change;
use crate::script::{Script, ScriptError, VARIABLE};
use crate::world::World;

/// Why there is no fake library to load.
#[derive(Debug, thiserror::Error)]
pub enum FakeError {
    /// A folder or file.
    #[error("{file}: {source}")]
    File {
        /// Which.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The script.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// A number that no GPU has.
    #[error("there is no GPU {0}")]
    NoGpu(u32),
    /// Instances that do not fit on a GPU.
    #[error("MIG instances of {0:?} slices do not fit")]
    Partition(Vec<u8>),
    /// The library that was built.
    #[error(transparent)]
    Elf(#[from] ElfError),
}

/// What is true of a fake library's GPUs.
#[derive(Debug)]
pub struct Truth {
    /// Wall-clock time of time zero.
    pub zero: WallUs,
    /// The GPUs, with all changes until now.
    pub gpus: Vec<SimGpu>,
}

impl Truth {
    /// The moment of a wall-clock time, in the GPUs' own time.
    pub fn at(&self, wall: WallUs) -> MonoUs {
        MonoUs(wall.0 - self.zero.0)
    }
}

/// What is set on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lowest and highest clock, if locked.
    pub locked: Option<(Megahertz, Megahertz)>,
    /// Power limit.
    pub limit: Milliwatts,
    /// Whether MIG is on.
    pub mig: bool,
    /// GPU instances: slices and start, by their ids.
    pub instances: Vec<(u8, u8)>,
}

/// A folder with a library, a script, and a state that processes share.
#[derive(Debug)]
pub struct Fake {
    folder: tempfile::TempDir,
    script: PathBuf,
}

fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T, FakeError> {
    result.map_err(|source| FakeError::File { file: path.display().to_string(), source })
}

/// The library that cargo built beside the executable that runs.
pub fn library() -> Result<PathBuf, FakeError> {
    let own = at(Path::new("this executable"), std::env::current_exe())?;
    let folder = own.parent().unwrap_or(Path::new("."));
    // A test lies in deps, an example or a program one folder higher.
    let places = [folder.to_owned(), folder.join("deps"), folder.join("../deps")];
    let found = places.iter().map(|place| place.join("libgpumon_fakenvml.so")).find(|path| path.exists());
    let missing = std::io::Error::other("libgpumon_fakenvml.so is not there; does the crate depend on it?");
    at(folder, found.ok_or(missing))
}

impl Fake {
    /// A fake library that plays a script; without the key `state` it gets one in the same folder.
    /// Symbols that the script wants missing are missing.
    pub fn new(script: &str) -> Result<Self, FakeError> {
        Self::with_files(script, &[])
    }

    /// The same, with files beside the script that it names, such as a description of GPUs.
    pub fn with_files(script: &str, files: &[(&str, &str)]) -> Result<Self, FakeError> {
        let folder = at(Path::new("a temporary folder"), tempfile::tempdir())?;
        for (name, text) in files {
            let path = folder.path().join(name);
            at(&path, std::fs::write(&path, text))?;
        }
        let missing = Script::parse(script, folder.path())?;
        let whole = match missing.state {
            Some(_) => script.to_owned(),
            None => format!("state = \"state\"\n{script}"),
        };
        let library = library()?;
        let copy = folder.path().join("libnvidia-ml.so.1");
        let symbols = missing.missing_symbols();
        if symbols.is_empty() {
            at(&copy, std::os::unix::fs::symlink(&library, &copy))?;
        } else {
            let bytes = at(&library, std::fs::read(&library))?;
            at(&copy, std::fs::write(&copy, elf::without_symbols(&bytes, &symbols)?))?;
        }
        let path = folder.path().join("script.toml");
        at(&path, std::fs::write(&path, whole))?;
        Ok(Self { folder, script: path })
    }

    /// What to set for a program that shall load it.
    pub fn environment(&self) -> [(OsString, OsString); 2] {
        [("LD_LIBRARY_PATH".into(), self.folder.path().into()), (VARIABLE.into(), self.script.clone().into())]
    }

    /// The folder: `libnvidia-ml.so.1`, `script.toml`, `state`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn world(&self) -> Result<World, FakeError> {
        Ok(World::open(Script::load(&self.script)?)?)
    }

    /// The GPUs as they are now, for what is true of them. Begins the state if no process did.
    pub fn truth(&self) -> Result<Truth, FakeError> {
        let world = self.world()?;
        let gpus = (0..world.gpu_count()).filter_map(|gpu| world.look(gpu, |m, _| m.sim.clone()).ok());
        Ok(Truth { zero: WallUs(world.wall_us(MonoUs(0))), gpus: gpus.collect() })
    }

    /// What is set on a GPU now, whoever set it.
    pub fn settings(&self, gpu: u32) -> Result<Settings, FakeError> {
        let settings = self.world()?.look(gpu, |model, _| Settings {
            locked: model.sim.settings().locked,
            limit: model.sim.settings().limit,
            mig: model.mig.on,
            instances: model.mig.instances.iter().map(|i| (i.slices, i.start)).collect(),
        });
        settings.map_err(|_| FakeError::NoGpu(gpu))
    }

    /// Turns MIG on and cuts a GPU into instances of these sizes, each with one compute instance, as root would have
    /// done before the test. Fails where they do not fit.
    pub fn partition(&self, gpu: u32, slices: &[u8]) -> Result<(), FakeError> {
        let world = self.world()?;
        let refused = |_| FakeError::Partition(slices.to_vec());
        world.change(gpu, |_, _| Ok((Change::Mig { on: true }, ()))).map_err(refused)?;
        for &slices in slices {
            let id = world.change(gpu, |model, _| {
                let size = SEVEN_SLICES.profile(slices).ok_or(Code::INVALID_ARGUMENT)?;
                let start = *model.mig.free_starts(size).last().ok_or(Code::INSUFFICIENT_RESOURCES)?;
                let id = model.mig.next_id(slices);
                Ok((Change::CreateGpuInstance { id, slices, start }, id))
            });
            let gpu_instance = id.map_err(refused)?;
            let compute = Change::CreateComputeInstance { gpu_instance, id: 0, slices, start: 0 };
            world.change(gpu, |_, _| Ok((compute, ()))).map_err(refused)?;
        }
        Ok(())
    }

    /// How often a function was called for a GPU, or, with `None`, without one.
    pub fn calls(&self, function: &str, gpu: Option<u32>) -> Result<u64, FakeError> {
        Ok(self.world()?.calls(function, gpu))
    }
}
