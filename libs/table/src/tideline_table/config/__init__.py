"""Every `hoodie.*` and `tideline.*` option of the engine, declared once, in a module for each topic.

`docs/options.md` is generated from these declarations. Table properties (stored in `hoodie.properties`) are in
`tideline_table.hudi.properties`. The options here configure writers and table services and are not stored with the table.
What a module declares is a name of this package.
"""

from tideline_table.config.clustering import *
from tideline_table.config.compaction import *
from tideline_table.config.coordination import *
from tideline_table.config.files import *
from tideline_table.config.index import *
from tideline_table.config.options import ALL_OPTIONS, AnyOption, Options, bulk_order, column_list, declare_options, is_declared
from tideline_table.config.retention import *
from tideline_table.config.writing import *
