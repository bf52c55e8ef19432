"""Keys and values decoded into columns beside the raw bytes: `--value-format avro` and its sisters.

    flags      the flags, and mistakes in them, told before Spark starts
    columns    which columns a frame gets: types of schema files and subjects, merged
    decode     runs on executors: raw bytes -> (data, problem), by Arrow batches
    types      the types of columns: pure data; how they merge
    registry   a client of schema registries (Confluent's REST API); framing: their wire format
    avro_values, json_values, protobuf_values   one format each: its type, its values
    statistics what the values of each field are, for `profile`

What runs on executors (decode and all it imports) travels by value; fastavro and protobuf travel as
a file for executors that lack them, in pure Python, which is slower.

Why Python and not Spark's from_json and from_avro: those give null for what does not decode, and
not why; and from_avro knows one writer's schema, where a registry has one for each value.
"""
