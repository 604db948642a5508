//! The edge to C: initialisation, arguments, and panics that stay inside.
//!
//! Rule: every exported function is made by [`exports!`]. It fails with UNINITIALIZED before a
//! successful `nvmlInit`, turns each argument into a checked one (a null pointer, or a handle that is
//! none, is INVALID_ARGUMENT; a text that names no GPU is NOT_FOUND), lets the script's faults strike,
//! and only then runs its body, which has no `unsafe`. A panic becomes UNKNOWN.
//! Cases: after as many shutdowns
//! as initialisations the library is uninitialised again; its GPUs stay as they are until the process
//! ends. Versioned structs are read only after their version, which names their size, was found right.
//! Not done here: what the real library does with pointers that are wrong but not null.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::codes::{Answer, Code};
use crate::script::{Script, ScriptError};
use crate::world::World;

/// Defines exported functions and the list of their names.
macro_rules! exports {
    ($( $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) => $body:ident; )*) => {
        /// Names of the functions below.
        pub(super) const NAMES: &[&str] = &[$( stringify!($name) ),*];
        $(
            #[allow(unsafe_code, non_snake_case, reason = "the library's own names")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $($arg: <$ty as $crate::edge::Arg>::Raw),*
            ) -> u32 {
                $crate::edge::guard(|| {
                    let world = $crate::edge::world()?;
                    // SAFETY: the caller promises what nvml.h says of each argument.
                    $( let $arg = unsafe { <$ty as $crate::edge::Arg>::take($arg, &world) }?; )*
                    let gpu: Option<u32> = None $( .or($crate::edge::Arg::gpu(&$arg)) )*;
                    let call = world.begin(stringify!($name), gpu)?;
                    self::$body(&call $(, $arg)*)
                })
            }
        )*
    };
}
pub(crate) use exports;

struct Library {
    users: u32,
    world: Option<Arc<World>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, world: None });

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a call's inside; nothing unwinds out of it.
pub(crate) fn guard(inside: impl FnOnce() -> Answer) -> u32 {
    match catch_unwind(AssertUnwindSafe(inside)) {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// The GPUs, if the library is initialised.
pub(crate) fn world() -> Answer<Arc<World>> {
    let library = library();
    library.world.as_ref().filter(|_| library.users > 0).cloned().ok_or(Code::UNINITIALIZED)
}

/// Initialises once more, as the function of this name.
pub(crate) fn init(function: &'static str) -> Answer {
    let world = {
        let mut library = library();
        match &library.world {
            Some(world) => world.clone(),
            None => {
                let world = Arc::new(open()?);
                library.world = Some(world.clone());
                world
            }
        }
    };
    // Without the lock: the script may want this call to hang.
    world.begin(function, None)?;
    library().users += 1;
    Ok(())
}

fn open() -> Answer<World> {
    let script = Script::from_environment();
    let world = script.and_then(|script| {
        missing_symbols_are_missing(&script)?;
        World::open(script)
    });
    world.map_err(|e| {
        eprintln!("gpumon-fakenvml: {e}");
        Code::UNKNOWN
    })
}

/// Refuses a script that wants a symbol missing which this copy of the library has.
fn missing_symbols_are_missing(script: &Script) -> Result<(), ScriptError> {
    let wanted = script.missing_symbols();
    if wanted.is_empty() {
        return Ok(());
    }
    let exported = own_path().and_then(|path| crate::dynamic_names(&std::fs::read(path).ok()?).ok());
    let exported = exported.unwrap_or_default();
    match wanted.iter().find(|symbol| exported.iter().any(|name| name == *symbol)) {
        Some(symbol) => Err(ScriptError::SymbolIsThere((*symbol).into())),
        None => Ok(()),
    }
}

fn own_path() -> Option<String> {
    // SAFETY: asks which file holds the address of a static of this library; `info` is a place for the
    // answer, whose text lives as long as the library is loaded.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr((&raw const LIBRARY).cast(), &mut info) != 0 && !info.dli_fname.is_null();
        found.then(|| CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned())
    }
}

/// Takes one initialisation back.
pub(crate) fn shutdown() -> Answer {
    let world = world()?;
    world.begin("nvmlShutdown", None)?;
    let mut library = library();
    library.users = library.users.saturating_sub(1);
    Ok(())
}

/// An argument of an exported function.
pub(crate) trait Arg: Sized {
    /// What C passes.
    type Raw;
    /// Checks it.
    ///
    /// # Safety
    /// A pointer is null or points to what nvml.h says: for [`Out`], as many items as the call's own
    /// count says; for [`Text`], a string that ends.
    unsafe fn take(raw: Self::Raw, world: &World) -> Answer<Self>;
    /// The GPU that it names.
    fn gpu(&self) -> Option<u32> {
        None
    }
}

macro_rules! plain {
    ($($ty:ty),*) => { $(
        impl Arg for $ty {
            type Raw = $ty;
            unsafe fn take(raw: $ty, _: &World) -> Answer<$ty> {
                Ok(raw)
            }
        }
    )* };
}
plain!(u32, i32, u64);

/// A place for one item, or for as many as the call's count says.
#[derive(Debug)]
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Arg for Out<T> {
    type Raw = *mut T;
    unsafe fn take(raw: *mut T, _: &World) -> Answer<Self> {
        NonNull::new(raw).map(Self).ok_or(Code::INVALID_ARGUMENT)
    }
}

impl<T> Arg for Option<Out<T>> {
    type Raw = *mut T;
    unsafe fn take(raw: *mut T, _: &World) -> Answer<Self> {
        Ok(NonNull::new(raw).map(Out))
    }
}

impl<T: Copy> Out<T> {
    /// The first item.
    pub(crate) fn get(&self) -> T {
        self.get_nth(0)
    }

    /// An item below the call's count.
    pub(crate) fn get_nth(&self, index: usize) -> T {
        // SAFETY: `Arg::take`: the caller has room for as many items as the call's count says.
        unsafe { self.0.as_ptr().add(index).read_unaligned() }
    }

    /// Writes the first item.
    pub(crate) fn put(&self, value: T) {
        self.put_nth(0, value);
    }

    /// Writes an item below the call's count.
    pub(crate) fn put_nth(&self, index: usize, value: T) {
        // SAFETY: as for `get_nth`.
        unsafe { self.0.as_ptr().add(index).write_unaligned(value) }
    }

    /// Writes items from the first on, no more than the call's count.
    pub(crate) fn put_all(&self, values: &[T]) {
        values.iter().enumerate().for_each(|(index, &value)| self.put_nth(index, value));
    }

    /// The number that a versioned struct begins with.
    pub(crate) fn version(&self) -> u32 {
        self.cast::<u32>(0).get()
    }

    /// The same place, `bytes` further, seen as another type: for structs whose length the version or
    /// the struct itself tells.
    pub(crate) fn cast<U>(&self, bytes: usize) -> Out<U> {
        // SAFETY: callers stay within the struct that `Arg::take` promises.
        Out(unsafe { self.0.byte_add(bytes) }.cast())
    }

    /// A place that a pointer in this struct leads to.
    pub(crate) fn inner<U>(&self, pointer: *mut U) -> Option<Out<U>> {
        NonNull::new(pointer).map(Out)
    }

    /// Fails unless the struct begins with `NVML_STRUCT_VERSION` of this type.
    pub(crate) fn has_version(&self, version: u32) -> Answer {
        let expected = size_of::<T>() as u32 | version << 24;
        if self.version() == expected { Ok(()) } else { Err(Code::ARGUMENT_VERSION_MISMATCH) }
    }
}

impl Out<c_char> {
    /// Writes a text that fits into `length` bytes with its end.
    pub(crate) fn put_text(&self, length: u32, text: &str) -> Answer {
        if text.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (index, byte) in text.bytes().chain([0]).enumerate() {
            self.put_nth(index, byte as c_char);
        }
        Ok(())
    }
}

/// A text in a field of a fixed size, cut to what fits.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    let room = N.saturating_sub(1);
    field.iter_mut().zip(text.bytes().take(room)).for_each(|(to, from)| *to = from as c_char);
    field
}

/// An items-and-count pair: writes all items, or says how many there are.
pub(crate) fn put_list<T: Copy>(count: &Out<u32>, to: &Option<Out<T>>, items: &[T]) -> Answer {
    let room = count.get() as usize;
    count.put(items.len() as u32);
    match to {
        _ if room < items.len() => Err(Code::INSUFFICIENT_SIZE),
        Some(to) => {
            to.put_all(items);
            Ok(())
        }
        None if items.is_empty() => Ok(()),
        None => Err(Code::INVALID_ARGUMENT),
    }
}

/// A text.
pub(crate) struct Text(pub(crate) String);

impl Arg for Text {
    type Raw = *const c_char;
    unsafe fn take(raw: *const c_char, _: &World) -> Answer<Self> {
        if raw.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: `Arg::take`: a string that ends.
        let text = unsafe { CStr::from_ptr(raw) };
        Ok(Self(text.to_string_lossy().into_owned()))
    }
}
