//! Scripted faults: which calls they strike, when, and what they do.
//!
//! Rule: a fault strikes the calls of one function (or `*`: every call but those that initialise and
//! shut down), on one GPU or on all, from a call number and from a time on, for a number of calls and
//! for a time; what is not given does not limit. Calls are counted for each function and GPU by
//! itself, from 1; times run from the state's time zero. Several faults may strike one call, in the
//! order of the script, until one of them decides what it answers.
//! Cases: a setter that `no-effect` strikes checks its arguments and succeeds; `lost` and `counter-reset` happen once and stay; `missing-symbol` is no matter of time, the
//! library that is loaded lacks the symbol; `vanish` strikes handles instead of calls: those from before are dead for
//! good, and there are new ones once it is over, as after a container got its GPU back or a driver was reloaded.
//! Not done here: a wait that no signal ends, which only a driver can do.

use serde::Deserialize;

use crate::calls;
use crate::codes::{self, Code};

/// Functions that initialise, which driver faults strike.
const INIT: &[&str] = &["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"];
const ENERGY: &[&str] = &["nvmlDeviceGetTotalEnergyConsumption"];
const FIELDS: &[&str] = &["nvmlDeviceGetFieldValues"];

/// Names of value types, in the order of their numbers; the last one is no type of NVML's.
const TYPES: &[&str] = &[
    "double",
    "unsigned-int",
    "unsigned-long",
    "unsigned-long-long",
    "signed-long-long",
    "signed-int",
    "unsigned-short",
    "unknown",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Error,
    Garbage,
    NoEffect,
    Delay,
    Hang,
    Lost,
    CounterReset,
    MissingSymbol,
    DriverMismatch,
    NoDriver,
    FieldError,
    FieldType,
    Vanish,
}

/// A fault as the script gives it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultText {
    kind: Kind,
    call: Option<String>,
    gpu: Option<u32>,
    from_call: Option<u64>,
    for_calls: Option<u64>,
    from_ms: Option<u32>,
    for_ms: Option<u32>,
    error: Option<String>,
    value: Option<i64>,
    delay_ms: Option<u32>,
    field: Option<u32>,
    #[serde(rename = "type")]
    value_type: Option<String>,
    kernel: Option<bool>,
}

/// A fault that can be played.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Position in the script, from 0.
    pub(crate) index: usize,
    /// Functions; empty for all.
    calls: Vec<&'static str>,
    gpu: Option<u32>,
    from_call: u64,
    for_calls: Option<u64>,
    pub(crate) from_us: i64,
    for_us: Option<i64>,
    pub(crate) what: What,
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// The call fails.
    Error(Code),
    /// The call succeeds and its numbers are this one.
    Garbage(i64),
    /// The call succeeds and changes nothing.
    NoEffect,
    /// The call takes longer, µs.
    Delay(i64),
    /// The call never returns; whether the kernel holds it, so that no signal reaches it.
    Hang(bool),
    /// The GPU is gone for good.
    Lost,
    /// The GPU is gone for a while, and its handles for good.
    Vanish(Code),
    /// The energy counter starts again at 0.
    CounterReset,
    /// The library has no such function.
    MissingSymbol,
    /// One field (or all) fails inside a call that succeeds.
    FieldError(Option<u32>, Code),
    /// One field (or all) comes as another value type.
    FieldType(Option<u32>, u32),
}

impl FaultText {
    pub(crate) fn check(self, index: usize, gpu_count: u32) -> Result<Fault, String> {
        let what = self.what()?;
        if let Some(gpu) = self.gpu.filter(|&gpu| gpu >= gpu_count) {
            return Err(format!("key `gpu`: found {gpu}, expected a number below {gpu_count}"));
        }
        if self.from_call == Some(0) {
            return Err("key `from_call`: found 0, but calls are counted from 1".into());
        }
        let ends = self.for_calls.is_some() || self.for_ms.is_some();
        if ends && matches!(what, What::Lost | What::CounterReset) {
            return Err("keys `for_calls` and `for_ms`: this kind happens once and stays for good".into());
        }
        let us = |ms: u32| i64::from(ms) * 1000;
        Ok(Fault {
            index,
            calls: self.calls(what)?,
            gpu: self.gpu,
            from_call: self.from_call.unwrap_or(1),
            for_calls: self.for_calls,
            from_us: self.from_ms.map_or(0, us),
            for_us: self.for_ms.map(us),
            what,
        })
    }

    fn what(&self) -> Result<What, String> {
        let (wants_error, wants_value, wants_delay, wants_type) = match self.kind {
            Kind::Error | Kind::FieldError | Kind::Vanish => (true, false, false, false),
            Kind::Garbage => (false, true, false, false),
            Kind::Delay => (false, false, true, false),
            Kind::FieldType => (false, false, false, true),
            _ => (false, false, false, false),
        };
        let may_field = matches!(self.kind, Kind::FieldError | Kind::FieldType);
        for (key, has, wants, needs) in [
            ("error", self.error.is_some(), wants_error, true),
            ("value", self.value.is_some(), wants_value, true),
            ("delay_ms", self.delay_ms.is_some(), wants_delay, true),
            ("type", self.value_type.is_some(), wants_type, true),
            ("field", self.field.is_some(), may_field, false),
            ("kernel", self.kernel.is_some(), self.kind == Kind::Hang, false),
            ("call", self.call.is_some(), self.kind != Kind::Vanish, false),
            ("from_call", self.from_call.is_some(), self.kind != Kind::Vanish, false),
            ("for_calls", self.for_calls.is_some(), self.kind != Kind::Vanish, false),
        ] {
            if has && !wants {
                return Err(format!("key `{key}`: this kind has none"));
            }
            if wants && needs && !has {
                return Err(format!("key `{key}` is missing"));
            }
        }
        Ok(match self.kind {
            Kind::Error => What::Error(self.code()?),
            Kind::FieldError => What::FieldError(self.field, self.code()?),
            Kind::FieldType => What::FieldType(self.field, self.type_number()?),
            Kind::Garbage => What::Garbage(self.value.unwrap_or_default()),
            Kind::NoEffect => What::NoEffect,
            Kind::Delay => What::Delay(i64::from(self.delay_ms.unwrap_or_default()) * 1000),
            Kind::Hang => What::Hang(self.kernel.unwrap_or(false)),
            Kind::Lost => What::Lost,
            Kind::Vanish => What::Vanish(self.code()?),
            Kind::CounterReset => What::CounterReset,
            Kind::MissingSymbol => What::MissingSymbol,
            Kind::DriverMismatch => What::Error(Code::LIB_RM_VERSION_MISMATCH),
            Kind::NoDriver => What::Error(Code::DRIVER_NOT_LOADED),
        })
    }

    fn code(&self) -> Result<Code, String> {
        let name = self.error.as_deref().unwrap_or_default();
        let known = || codes::NAMES.join(", ");
        codes::by_name(name)
            .ok_or_else(|| format!("key `error`: found `{name}`, expected one of {}", known()))
    }

    fn type_number(&self) -> Result<u32, String> {
        let name = self.value_type.as_deref().unwrap_or_default();
        let position = TYPES.iter().position(|known| *known == name);
        let expected = || format!("`{}`", TYPES.join("`, `"));
        match position {
            // Far from every number that NVML uses.
            Some(last) if last + 1 == TYPES.len() => Ok(99),
            Some(number) => Ok(number as u32),
            None => Err(format!("key `type`: found `{name}`, expected one of {}", expected())),
        }
    }

    fn calls(&self, what: What) -> Result<Vec<&'static str>, String> {
        let by_default = match self.kind {
            Kind::DriverMismatch | Kind::NoDriver => Some(INIT),
            Kind::CounterReset => Some(ENERGY),
            Kind::FieldError | Kind::FieldType => Some(FIELDS),
            Kind::Lost | Kind::Vanish => Some(&[][..]),
            _ => None,
        };
        let Some(name) = self.call.as_deref() else {
            return by_default.map(<[_]>::to_vec).ok_or_else(|| "key `call` is missing".into());
        };
        let Some(known) = calls::functions().iter().find(|known| **known == name) else {
            return match name {
                "*" if !matches!(what, What::MissingSymbol | What::NoEffect) => Ok(Vec::new()),
                _ => Err(format!("key `call`: this library has no function `{name}`")),
            };
        };
        if matches!(what, What::Garbage(_)) && !calls::GARBAGE.contains(known) {
            let able = calls::GARBAGE.join(", ");
            return Err(format!("key `call`: `{known}` cannot answer garbage; these can: {able}"));
        }
        if what == What::NoEffect && !calls::SETTERS.contains(known) {
            let able = calls::SETTERS.join(", ");
            return Err(format!("key `call`: `{known}` changes nothing anyway; these do: {able}"));
        }
        if matches!(what, What::FieldError(..) | What::FieldType(..)) && !FIELDS.contains(known) {
            return Err(format!("key `call`: `{known}` has no fields; leave the key out"));
        }
        Ok(vec![known])
    }
}

impl Fault {
    /// Whether a call is struck: the `nth` one of its function on its GPU, the `nth_of_all` on it.
    pub(crate) fn strikes(
        &self,
        function: &str,
        gpu: Option<u32>,
        (nth, nth_of_all): (u64, u64),
        now_us: i64,
    ) -> bool {
        let (named, nth) = match self.calls.is_empty() {
            true => (!INIT.contains(&function) && function != "nvmlShutdown", nth_of_all),
            false => (self.calls.contains(&function), nth),
        };
        let past = nth.saturating_sub(self.from_call);
        named
            && !matches!(self.what, What::MissingSymbol | What::Vanish(_))
            && self.gpu.is_none_or(|wanted| gpu == Some(wanted))
            && nth >= self.from_call
            && self.for_calls.is_none_or(|calls| past < calls)
            && now_us >= self.from_us
            && self.for_us.is_none_or(|for_us| now_us < self.from_us + for_us)
    }

    /// If this makes a GPU vanish and has begun: the code that its dead handles answer, and whether it is still gone.
    pub(crate) fn vanished(&self, gpu: u32, now_us: i64) -> Option<(Code, bool)> {
        let What::Vanish(code) = self.what else { return None };
        let concerns = self.gpu.is_none_or(|wanted| wanted == gpu) && now_us >= self.from_us;
        concerns.then(|| (code, self.for_us.is_none_or(|for_us| now_us < self.from_us + for_us)))
    }

    /// The symbol that is missing, if this is that kind of fault.
    pub(crate) fn missing_symbol(&self) -> Option<&'static str> {
        self.calls.first().copied().filter(|_| self.what == What::MissingSymbol)
    }
}
