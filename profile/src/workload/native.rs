//! Native nets: gpumon itself is their worker, in a process of its own for each share.
//!
//! Rule: the net is read here first, so that what is wrong with it is said before anything runs.

use std::sync::Arc;

use super::command::Commanded;
use super::{Context, OpenError, Opened};
use crate::native::net_of;

pub(super) fn open(name: &str, net: &str, context: &Context) -> Opened {
    net_of(net)?;
    let mut argv = context.native.clone().ok_or_else(|| OpenError::NoProgram(net.into()))?;
    argv.push(net.into());
    Ok(Box::new(Commanded::new(name, argv, Arc::clone(&context.clock))))
}
