"""Training in rounds of MapReduce: statistics of blocks of examples, summed in the blocks' order, update a
state.

`job` defines what a user writes, `preparing` keeps what a job's maps begin with, `sums` adds statistics up in a
fixed order, `dealing` and `dealer` assign blocks to ranks, `wire` turns statistics into bytes, `alone` and `spark`
run rounds without a trainer, `rounds` makes a `Task` from a job. Only `rounds` imports torch. The engine that runs
rounds over several ranks is `oakum_worker.strategies.map_reduce`.
"""
